"""Options of ``serve`` about what clients may do and what they get."""

from vllmfront.cli import _values as values
from vllmfront.cli._flag import Arity, Flag, Group

SERVER = Group(
    title="server",
    flags=(
        Flag(
            name="--served-model-name",
            target="server.served_model_names",
            arity=Arity.MANY,
            metavar="NAME",
            help="names of the model for clients; the first one is shown in answers",
        ),
        Flag(
            name="--api-key",
            target="server.api_keys",
            arity=Arity.REPEATED,
            parse=values.non_empty,
            metavar="KEY",
            env="VLLM_API_KEY",
            help="require this key from clients; may be given several times",
        ),
        Flag(
            name="--admin-api-key",
            target="server.admin_api_keys",
            arity=Arity.REPEATED,
            parse=values.non_empty,
            metavar="KEY",
            help=(
                "require this key for what only operators may see and do; may be given several "
                "times; --api-key when not given"
            ),
        ),
        Flag(
            name="--enable-log-requests",
            target="server.log_requests",
            arity=Arity.SWITCH,
            help="log one line a finished request",
        ),
        Flag(
            name="--disable-log-stats",
            target="server.log_stats",
            arity=Arity.SWITCH,
            convert=lambda disabled: not disabled,
            help="no periodic line, no engine statistics",
        ),
        Flag(
            name="--enable-prompt-tokens-details",
            target="server.prompt_tokens_details",
            arity=Arity.BOOL,
            help="show cached prompt tokens in usage",
        ),
        Flag(
            name="--enable-per-request-metrics",
            target="server.per_request_metrics",
            arity=Arity.BOOL,
            help="add timings to answers",
        ),
        Flag(
            name="--enable-request-id-headers",
            target="server.request_id_headers",
            arity=Arity.BOOL,
            help="add X-Request-Id to responses",
        ),
        Flag(
            name="--sse-keep-alive-interval",
            target="server.sse_keep_alive_interval",
            parse=values.seconds,
            metavar="SECONDS",
            help="send a comment on streams that are idle for so long; 0: never",
        ),
        Flag(
            name="--custom-histogram-buckets",
            target="server.histogram_buckets",
            parse=values.histogram_buckets,
            metavar="JSON",
            help="upper bounds by metric family",
        ),
        Flag(
            name="--allowed-origins",
            target="server.cors.origins",
            parse=values.string_list,
            metavar="JSON",
            help="CORS: origins",
        ),
        Flag(
            name="--allowed-methods",
            target="server.cors.methods",
            parse=values.string_list,
            metavar="JSON",
            help="CORS: methods",
        ),
        Flag(
            name="--allowed-headers",
            target="server.cors.headers",
            parse=values.string_list,
            metavar="JSON",
            help="CORS: request headers",
        ),
        Flag(
            name="--allow-credentials",
            target="server.cors.credentials",
            arity=Arity.BOOL,
            help="CORS: allow credentials",
        ),
    ),
)

TLS = Group(
    title="TLS",
    flags=(
        Flag(
            name="--ssl-certfile",
            target="server.tls.certfile",
            metavar="PEM",
            help="certificate, with its key unless --ssl-keyfile is given; switches TLS on",
        ),
        Flag(
            name="--ssl-keyfile",
            target="server.tls.keyfile",
            metavar="PEM",
            help="private key",
        ),
        Flag(
            name="--ssl-ca-certs",
            target="server.tls.ca_certs",
            metavar="PEM",
            help="authorities that sign client certificates",
        ),
        Flag(
            name="--ssl-cert-reqs",
            target="server.tls.cert_reqs",
            parse=values.integer(0, 2),
            metavar="N",
            help="client certificates: 0 none, 1 optional, 2 required",
        ),
        Flag(
            name="--ssl-ciphers",
            target="server.tls.ciphers",
            metavar="LIST",
            help="OpenSSL cipher list, for TLS 1.2",
        ),
    ),
)
