"""Every option that ``serve`` serves, as tables."""

from collections.abc import Mapping, Sequence

from vllmfront.cli import _unserved_flags
from vllmfront.cli import _values as values
from vllmfront.cli._flag import Arity, Flag, Group

_PORT = values.integer(0, 65535)
_COUNT = values.integer(0, 2**31 - 1)

LISTENER = Group(
    title="listener and process",
    flags=(
        Flag(name="--host", target="listen.host", metavar="HOST", help="address to listen on"),
        Flag(
            name="--port",
            target="listen.port",
            parse=_PORT,
            metavar="PORT",
            help="port to listen on; 0 takes a free one",
        ),
        Flag(
            name="--uds",
            target="listen.uds",
            metavar="PATH",
            help="listen on a Unix socket instead of host and port",
        ),
        Flag(
            name="--shutdown-timeout",
            target="server.shutdown_timeout",
            # Whole seconds: the engine is told, too, and takes nothing else.
            parse=_COUNT,
            metavar="SECONDS",
            help="how long running requests may go on after SIGTERM or SIGINT; 0 cuts them off",
        ),
        Flag(
            name="--http-timeout-keep-alive",
            target="server.keep_alive_timeout",
            parse=values.seconds,
            metavar="SECONDS",
            env="VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
            help="how long an idle connection is kept; 0 closes it after each response",
        ),
        Flag(
            name="--http-send-timeout",
            target="server.send_timeout",
            parse=values.positive_seconds,
            metavar="SECONDS",
            help="how long a client may accept nothing before its request is given up",
        ),
        Flag(
            name="--engine-ready-timeout-secs",
            target="engine.ready_timeout",
            parse=values.positive_seconds,
            metavar="SECONDS",
            env="VLLM_ENGINE_READY_TIMEOUT_S",
            help="limit for each phase of the engine's start-up",
        ),
        Flag(
            name="--python",
            target="engine.python",
            metavar="EXE",
            env="VLLM_RS_PYTHON",
            help="interpreter that runs the managed engine; vLLM must be installed there",
        ),
    ),
)

ENGINES = Group(
    title="engines",
    flags=(
        Flag(
            name="--data-parallel-address",
            aliases=("--handshake-host",),
            target="engine.host",
            metavar="HOST",
            help="address on which engines find us",
        ),
        Flag(
            name="--data-parallel-rpc-port",
            aliases=("--handshake-port",),
            target="engine.handshake_port",
            parse=values.integer(1, 65535),
            metavar="PORT",
            help="port on which engines find us; a free one when not given",
        ),
        Flag(
            name="--data-parallel-size",
            target="engine.data_parallel_size",
            parse=_COUNT,
            metavar="N",
            help="engines in the whole deployment",
        ),
        Flag(
            name="--data-parallel-size-local",
            target="engine.data_parallel_size_local",
            parse=_COUNT,
            metavar="N",
            help="engines to start on this node; 0: none, they are started elsewhere",
        ),
        Flag(
            name="--max-model-len",
            metavar="LEN",
            help="longest context, handed to the engine; we use what it reports",
        ),
    ),
)

MODEL = Group(
    title="model, tokenizer, template",
    flags=(
        Flag(
            name="--revision",
            target="model.revision",
            metavar="REV",
            help="branch, tag or commit of the model on the hub",
        ),
        Flag(
            name="--tokenizer",
            target="model.tokenizer",
            metavar="MODEL",
            help="tokenizer of another model, or a folder",
        ),
        Flag(
            name="--tokenizer-revision",
            target="model.tokenizer_revision",
            metavar="REV",
            help="revision of the tokenizer; --revision when not given",
        ),
        Flag(
            name="--hf-config-path",
            target="model.config_path",
            metavar="MODEL",
            help="where config.json is, when not with the model",
        ),
        Flag(
            name="--hf-overrides",
            target="model.overrides",
            parse=values.json_object,
            metavar="JSON",
            help="merge patch (RFC 7396) on config.json; null removes a field",
        ),
        Flag(
            name="--generation-config",
            target="model.generation_config",
            parse=values.generation_config,
            metavar="SOURCE",
            help="sampling defaults: auto (the model's) or vllm (neutral)",
        ),
        Flag(
            name="--tokenizer-mode",
            target="model.mode",
            parse=values.one_of("auto", "hf"),
            metavar="MODE",
            help="what turns chats into prompts: auto or hf, the model's template",
        ),
        Flag(
            name="--chat-template",
            target="chat.template",
            metavar="TEMPLATE",
            help="file with a chat template, or the template itself",
        ),
        Flag(
            name="--chat-template-content-format",
            target="chat.content_format",
            parse=values.one_of("auto", "string", "openai"),
            metavar="FORMAT",
            help="how templates get message content: auto, string or openai",
        ),
        Flag(
            name="--default-chat-template-kwargs",
            target="chat.template_kwargs",
            parse=values.json_object,
            metavar="JSON",
            help="template variables; those of a request win",
        ),
        Flag(
            name="--trust-request-chat-template",
            target="chat.trust_request_template",
            arity=Arity.BOOL,
            help="allow a chat template in a request",
        ),
        Flag(
            name="--exclude-tools-when-tool-choice-none",
            target="chat.exclude_tools_when_none",
            arity=Arity.BOOL,
            help="hide tools from the template when tool_choice is none",
        ),
        Flag(
            name="--language-model-only",
            arity=Arity.SWITCH,
            help="tell the engine that there is no multimodal input",
        ),
        Flag(
            name="--limit-mm-per-prompt",
            parse=values.item_limits,
            metavar="JSON",
            help="multimodal items per prompt, handed to the engine",
        ),
    ),
)

DECODING = Group(
    title="parsing and decoding",
    flags=(
        Flag(
            name="--tool-call-parser",
            target="decoding.tool_call_parser",
            metavar="NAME",
            help="auto or none",
        ),
        Flag(
            name="--reasoning-parser",
            target="decoding.reasoning_parser",
            metavar="NAME",
            help="auto or none",
        ),
        Flag(
            name="--structured-outputs-config",
            target="decoding.structured_outputs_backend",
            parse=values.structured_outputs,
            convert=lambda config: config.get("backend", "xgrammar"),
            metavar="JSON",
            help="we read backend, the engine the rest",
        ),
        Flag(
            name="--max-logprobs",
            target="decoding.max_logprobs",
            parse=values.integer(-1, 2**31 - 1),
            metavar="N",
            help="most log probabilities a position; -1: no cap",
        ),
        Flag(
            name="--stream-interval",
            target="decoding.stream_interval",
            parse=values.integer(1, 2**31 - 1),
            metavar="N",
            help="tokens that a streamed chunk waits for",
        ),
        Flag(
            name="--return-tokens-as-token-ids",
            target="decoding.return_tokens_as_token_ids",
            arity=Arity.BOOL,
            help="show tokens of log probabilities as token_id:N",
        ),
    ),
)

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
            name="--enable-tokenizer-info-endpoint",
            target="server.tokenizer_info",
            arity=Arity.BOOL,
            help="register /tokenizer_info",
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

GROUPS = (LISTENER, ENGINES, MODEL, DECODING, SERVER, TLS)

SHARED = (
    "--revision",
    "--tokenizer",
    "--tokenizer-revision",
    "--hf-config-path",
    "--max-model-len",
    "--max-logprobs",
    "--language-model-only",
    "--disable-log-stats",
    "--shutdown-timeout",
    "--data-parallel-size-local",
    "--limit-mm-per-prompt",
    "--hf-overrides",
    "--structured-outputs-config",
)
"""Options that the managed engine gets as well when they are given, in this order."""


def option_names() -> Sequence[str]:
    """List every option word that stays on our side, unserved ones included."""
    names = ["--help", "--debug-cli"]
    for group in GROUPS:
        for flag in group.flags:
            names += [flag.name, *flag.aliases]
    return [*names, *_unserved_flags.option_names()]


def flags() -> Mapping[str, Flag]:
    """Map each option that we serve to its description."""
    return {flag.name: flag for group in GROUPS for flag in group.flags}
