"""What a person asks for on the command line, as frozen values."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._engine_config import EngineConfig
from vllmfront.lifecycles._parallel import (
    check_headless,
    check_parallel,
    check_ports,
    check_workers,
)


@attrs.frozen(kw_only=True)
class ListenConfig:
    """Where clients reach us."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes any free port."""

    uds: str | None = None
    """Path of a Unix socket; host and port are then ignored."""

    fds: Sequence[int] = ()
    """Listening sockets that we have inherited; host and port are then ignored."""

    admin: str | None = None
    """``HOST:PORT`` or the path of a Unix socket for what operators may do; None: as clients."""

    pid_file: str | None = None
    """Where it is written which process serves."""


@attrs.frozen(kw_only=True)
class AdapterConfig:
    """A LoRA adapter that is loaded before the server serves."""

    name: str
    path: str
    """A folder that the engine finds, or a hub id."""

    base_model_name: str | None = None
    """Which of the model's names it is shown under; None, or another: the first."""

    is_3d_lora_weight: bool = False


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Which model files to load, and how to read them."""

    model: str
    """Hub id or folder, as given."""

    revision: str | None = None
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    """None means ``revision``."""

    config_path: str | None = None
    overrides: Mapping[str, Any] = attrs.field(factory=dict)
    """A merge patch (RFC 7396) on config.json."""

    adapters: Sequence[AdapterConfig] = ()
    """LoRA adapters, which requests name in place of the model."""

    generation_config: str = "auto"
    """``auto``: the model's sampling defaults; ``vllm``: neutral ones."""

    generation_overrides: Mapping[str, Any] = attrs.field(factory=dict)
    """Sampling defaults in place of those; null takes one away."""


@attrs.frozen(kw_only=True)
class ChatConfig:
    """How messages become a prompt."""

    template: str | None = None
    """A file, or the template itself."""

    content_format: str = "auto"
    template_kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    trust_request_template: bool = False
    exclude_tools_when_none: bool = False


@attrs.frozen(kw_only=True)
class DecodingConfig:
    """How tokens become answers."""

    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    structured_outputs_backend: str = "xgrammar"
    max_logprobs: int = 20
    """-1: no cap."""

    stream_interval: int = 1
    return_tokens_as_token_ids: bool = False


@attrs.frozen(kw_only=True)
class RequestsConfig:
    """What a request may cost, and what is done for one that its engine has left."""

    default_timeout: float | None = None
    """Seconds from a request's arrival to its end, unless it says otherwise; None: no limit."""

    max_queued: int | None = None
    """Choices in flight, waiting and running, beyond which requests are refused; None: no limit."""

    max_queued_tokens: int | None = None
    """Prompt tokens that wait for their first answer, from which on requests are refused."""

    max_loop_lag: float = 1.0
    """Seconds that our event loop may be late, for some time, before requests are refused."""

    recovery_wait: float = 30.0
    """Seconds that a request waits for an engine in place of one that was lost."""

    retries: int = 2
    """How often a request is sent again after its engine was lost."""

    continuation: bool = True
    """Whether a stream that has delivered tokens goes on elsewhere."""


@attrs.frozen(kw_only=True)
class ControlFlags:
    """How orders to all engines are given."""

    timeout: float = 300.0
    """Seconds until one that is not answered is given up."""

    lease_action: str = "resume"
    """What ends a pause whose lease was not renewed: ``resume``, ``keep-paused``, ``shutdown``."""

    unsafe_weight_sync: bool = False
    """Whether orders about weights are passed on at any time."""

    profiler: str | None = None
    """What the engines are profiled by; None: they are not."""


@attrs.frozen(kw_only=True)
class CorsConfig:
    """Which web pages of other origins may call us."""

    origins: Sequence[str] = ()
    methods: Sequence[str] = ("*",)
    headers: Sequence[str] = ("*",)
    credentials: bool = False


@attrs.frozen(kw_only=True)
class TlsConfig:
    """Certificates; TLS is on when ``certfile`` is set."""

    certfile: str | None = None
    keyfile: str | None = None
    """None: the key is in ``certfile``."""

    ca_certs: str | None = None
    cert_reqs: int = 0
    """Client certificates: 0 not asked for, 1 optional, 2 required."""

    ciphers: str | None = None


@attrs.frozen(kw_only=True)
class ServerConfig:
    """How the HTTP server behaves."""

    served_model_names: Sequence[str] = ()
    """Empty: the model's own name."""

    api_keys: Sequence[str] = attrs.field(default=(), repr=False)
    """Secrets, hence in no repr and no log."""

    admin_api_keys: Sequence[str] = attrs.field(default=(), repr=False)
    """Secrets for what only operators may see and do; empty: the others open that, too."""

    shutdown_timeout: float = 0.0
    """Seconds for running requests to finish after the first signal."""

    api_server_count: int | None = 1
    """Processes that serve clients; None: as many as cores and load ask for."""

    log_level_file: str | None = None
    """What the log level is read from, at the start and at SIGHUP."""

    keep_alive_timeout: float = 5.0
    """Seconds that an idle connection is kept; 0 closes it after each response."""

    send_timeout: float = 60.0
    """Seconds without progress until a client counts as stalled."""

    sse_keep_alive_interval: float = 0.0
    """Seconds between comments on idle streams; 0: none."""

    log_requests: bool = False
    log_stats: bool = True
    prompt_tokens_details: bool = False
    per_request_metrics: bool = False
    request_id_headers: bool = False
    histogram_buckets: Mapping[str, Sequence[float]] = attrs.field(factory=dict)
    cors: CorsConfig = attrs.field(factory=CorsConfig)
    tls: TlsConfig = attrs.field(factory=TlsConfig)


@attrs.frozen(kw_only=True)
class ServeConfig:
    """Everything that ``vllmfront serve`` needs to know."""

    model: ModelConfig
    listen: ListenConfig = attrs.field(factory=ListenConfig)
    engine: EngineConfig = attrs.field(factory=EngineConfig)
    chat: ChatConfig = attrs.field(factory=ChatConfig)
    decoding: DecodingConfig = attrs.field(factory=DecodingConfig)
    requests: RequestsConfig = attrs.field(factory=RequestsConfig)
    control: ControlFlags = attrs.field(factory=ControlFlags)
    server: ServerConfig = attrs.field(factory=ServerConfig)
    headless: bool = False
    """Whether engines are run here without a frontend."""

    def check(self) -> None:
        """Look for options that do not fit together.

        Raises:
            ConfigurationError: Names the options.
        """
        check_parallel(self.engine)
        if self.headless:
            check_headless(self.engine)
        self.engine.check()
        elsewhere = self.listen.uds is not None or bool(self.listen.fds)
        check_ports(self.engine, self.listen.port, elsewhere=elsewhere)
        check_workers(self.engine, self.server.api_server_count)
        self.check_answers()

    def check_answers(self) -> None:
        """Do so for what does not concern the engines.

        Raises:
            ConfigurationError: Names the options.
        """
        tls = self.server.tls
        if tls.certfile is None and (tls.keyfile or tls.ca_certs or tls.cert_reqs or tls.ciphers):
            raise ConfigurationError(
                "--ssl-certfile is required to enable TLS; --ssl-keyfile/--ssl-ca-certs/"
                "--ssl-cert-reqs/--ssl-ciphers cannot be used without it"
            )
        for flag, parser in (
            ("--tool-call-parser", self.decoding.tool_call_parser),
            ("--reasoning-parser", self.decoding.reasoning_parser),
        ):
            if parser.lower() not in {"auto", "none"}:
                raise ConfigurationError(
                    f"{flag} {parser}: this build has no parsers yet, tool calls and reasoning "
                    "stay plain content; use `auto` or `none`"
                )
