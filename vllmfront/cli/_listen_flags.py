"""Options of ``serve`` about where clients and engines find us, and about the process."""

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
            name="--listen-fd",
            target="listen.fds",
            arity=Arity.REPEATED,
            parse=_COUNT,
            metavar="FD",
            help="serve a listening socket that whoever started us has opened; may be given "
            "several times",
        ),
        Flag(
            name="--admin-listen",
            target="listen.admin",
            parse=values.admin_address,
            metavar="HOST:PORT|PATH",
            help="answer operators (developer routes, adapters, /supervisor, metrics) on a "
            "listener of their own, which clients cannot fill, and nowhere else",
        ),
        Flag(
            name="--pid-file",
            target="listen.pid_file",
            parse=values.non_empty,
            metavar="FILE",
            help="file that names the process that serves, for vllmfront reload",
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
            name="--api-server-count",
            target="server.api_server_count",
            parse=values.worker_count,
            metavar="N|auto",
            help="processes that serve clients; auto: one, and another whenever all are busy, as "
            "far as there are processors",
        ),
        Flag(
            name="--log-level-file",
            target="server.log_level_file",
            parse=values.non_empty,
            metavar="FILE",
            help="file with the log level (DEBUG, INFO, ...), read at the start and at SIGHUP; "
            "where it is missing or empty, VLLM_LOGGING_LEVEL decides",
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
            name="--state-dir",
            target="engine.state_dir",
            parse=values.non_empty,
            metavar="FOLDER",
            help="where engines that are started elsewhere are kept for the next start, which "
            "serves them without a reload",
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
            name="--routing",
            target="engine.routing",
            parse=values.one_of("least-loaded", "prefix", "session"),
            metavar="POLICY",
            help="which of several engines gets a request: the least-loaded one; by prefix, the "
            "one that has the prompt's beginning in its cache; or by session, the one that served "
            "the session before (X-Session-ID); unless that is overloaded",
        ),
        Flag(
            name="--max-model-len",
            metavar="LEN",
            help="longest context, handed to the engine; we use what it reports",
        ),
    ),
)
