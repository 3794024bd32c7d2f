"""``serve``: one frontend, with an engine of its own or with engines that are run elsewhere.

::

    main            owns listeners, signals, the one shutdown deadline
    └─ link         the engine client: sockets, handshake, reader; engines come and go on it
       └─ root      the tree of children, see ``_tree.py``
"""

import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from pathlib import Path

import attrs
import trio

from vllmfront.api.http import ListenConfig as HttpListenConfig
from vllmfront.api.http import Listener, open_listeners
from vllmfront.control import open_control_plane
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    open_engine_client,
)
from vllmfront.errors import RestartLimitExceeded
from vllmfront.lifecycles._admin import is_for_operators, open_admin_listeners
from vllmfront.lifecycles._api import FLUSH_BUDGET
from vllmfront.lifecycles._client_config import client_config
from vllmfront.lifecycles._config import ListenConfig, ServeConfig
from vllmfront.lifecycles._control import control_config
from vllmfront.lifecycles._custody import Custodies
from vllmfront.lifecycles._engine import REAP_BUDGET, STOP_BUDGET
from vllmfront.lifecycles._engine_config import Balancing
from vllmfront.lifecycles._generation import Generation, UpgradeTrigger, open_upgrades
from vllmfront.lifecycles._heritage import Heritage, adopt_listeners, open_heritage
from vllmfront.lifecycles._model import steps_together
from vllmfront.lifecycles._ports import RankPorts, open_rank_ports
from vllmfront.lifecycles._service import open_service
from vllmfront.lifecycles._tree import Parts, plan_tree
from vllmfront.lifecycles._units import plan_units
from vllmfront.lifecycles.upgrade import PidFile
from vllmfront.lifecycles.workers import open_worker_host, share_engines
from vllmfront.supervisor import Shutdown

_LOGGER = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Serving:
    """Where a frontend can be reached, by clients and by engines."""

    listeners: Sequence[Listener]
    handshake_address: str | None


async def serve(  # noqa: ASYNC128 (the child that listens calls it)
    config: ServeConfig,
    *,
    on_loaded: Callable[[], None] = lambda: None,
    reload_log_level: Callable[[], str] = lambda: "the log level stays",
    task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until a signal asks for the end; ``started()`` tells where, once HTTP answers.

    Args:
        config: What to serve, and how.
        on_loaded: Called once, when the model's files have been read.
        reload_log_level: Called at SIGHUP; returns what it did, for the log.
        task_status: Of a nursery's ``start``.

    Raises:
        VllmFrontError: It could not start, or could not go on; one error, with its causes.
    """
    config.check()
    pid_file = _pid_file(config.listen)
    lockstep = await steps_together(config)
    engines = share_engines(client_config(config, lockstep=lockstep), config)
    units = plan_units(config.engine, lockstep=lockstep) if config.engine.managed else ()
    shutdown = Shutdown(
        budget=config.server.shutdown_timeout, margin=FLUSH_BUDGET + STOP_BUDGET + REAP_BUDGET
    )
    trigger = UpgradeTrigger()
    async with (
        open_heritage(config, engines.ranks, pid_file) as heritage,
        open_service(shutdown, reload_log_level=reload_log_level, hand_over=trigger) as service,
        open_ports(config) as ports,
        _listeners(config.listen, heritage, ports) as held,
        open_admin_listeners(config.listen.admin, [*filter(is_for_operators, held)]) as admin,
        open_engine_client(engines, inheritance=heritage.engines) as client,
        open_control_plane(client, control_config(config.control)) as control,
        open_worker_host(config, engines, client, shutdown, service.reloads) as host,
    ):
        listeners = [one for one in held if not is_for_operators(one)]
        client.pauses.leases.on_shutdown = shutdown.request
        if heritage.estate is not None:
            control.adopt(heritage.estate.control)
        else:
            control.adopt_saved()
        control.record()
        generation = Generation(
            client=client,
            control=control,
            listeners=[*listeners, *admin],
            custody=Custodies([unit.name for unit in units], heritage.processes),
            shutdown=shutdown,
            notifier=service.notifier,
            pid_file=pid_file,
            predecessor=heritage.predecessor,
            files=heritage.files,
            fixed=_fixed(config, engines),
        )
        async with open_upgrades(generation, trigger):
            _announce(config, listeners, client, heritage, ports)
            parts = Parts(
                config=config,
                host=host,
                listeners=listeners,
                admin_listeners=admin if config.listen.admin is not None else (),
                client=client,
                control=control,
                shutdown=shutdown,
                service=service,
                generation=generation,
                units=units,
                ports=ports,
                preloaded=heritage.model,
                on_loaded=on_loaded,
            )
            serving = Serving(listeners=listeners, handshake_address=client.handshake_address)
            readiness = _Readiness(task_status, serving, generation.ready)
            with told_by_the_lowest():
                await plan_tree(parts).run(shutdown.requested, task_status=readiness)
    _LOGGER.info("stopped")


def _pid_file(listen: ListenConfig) -> PidFile | None:
    return None if listen.pid_file is None else PidFile(Path(listen.pid_file).absolute())


@contextmanager
def told_by_the_lowest() -> Iterator[None]:
    """Let the supervisor that gave up tell why: those above add that they had to follow."""
    try:
        yield
    except RestartLimitExceeded as error:
        lowest = error
        while isinstance(lowest.__cause__, RestartLimitExceeded):
            lowest = lowest.__cause__
        raise lowest from lowest.__cause__


class _Readiness:
    """Passes readiness on, with what callers want to know."""

    def __init__(
        self, task_status: trio.TaskStatus[Serving], serving: Serving, ready: trio.Event
    ) -> None:
        self._task_status = task_status
        self._serving = serving
        self._ready = ready

    def started(self, value: None = None) -> None:
        del value
        self._ready.set()
        self._task_status.started(self._serving)


@asynccontextmanager
async def open_ports(config: ServeConfig) -> AsyncGenerator[RankPorts | None]:
    """Listen on one port an engine for the block, where that is asked for."""
    if config.engine.balancing is not Balancing.MULTI_PORT:
        yield None
        return
    async with open_rank_ports(config.listen.host, config.listen.port, config.engine) as ports:
        yield ports


def _fixed(config: ServeConfig, engines: EngineClientConfig) -> str | None:
    """Say why no other process can take the place of this one; None: one can."""
    if config.engine.balancing is Balancing.MULTI_PORT:
        return "it serves one port an engine (--data-parallel-multi-port-external-lb); restart it"
    if engines.deployment is not None:
        return (
            "programs on other nodes depend on it, or it on them; end all of the deployment, and "
            "start it again"
        )
    return None


def _listeners(
    listen: ListenConfig, heritage: Heritage, ports: RankPorts | None
) -> AbstractAsyncContextManager[Sequence[Listener]]:
    """Open the sockets for HTTP, or those of the process before us."""
    if ports is not None:
        return nullcontext(ports.listeners)
    if heritage.estate is not None:
        return adopt_listeners(heritage.estate.listeners)
    return open_listeners(_listen_config(listen))


def _listen_config(listen: ListenConfig) -> HttpListenConfig:
    if not listen.fds and os.environ.get("LISTEN_PID") == str(os.getpid()):
        return HttpListenConfig(systemd=True)
    return HttpListenConfig(host=listen.host, port=listen.port, uds=listen.uds, fds=listen.fds)


def _announce(
    config: ServeConfig,
    listeners: Sequence[Listener],
    client: EngineClient,
    heritage: Heritage,
    ports: RankPorts | None,
) -> None:
    scheme = "http" if config.server.tls.certfile is None else "https"
    for listener in listeners:
        _LOGGER.info("listening on %s", _url(scheme, listener))
    if ports is not None:
        for port, rank in ports.ranks.items():
            _LOGGER.info("port %d is that of engine %d", port, rank)
        for listener in ports.overview:
            _LOGGER.info("the health of all is told on %s", _url(scheme, listener))
    engine = config.engine
    if engine.shared:
        first = "this one" if client.handshake_address else f"at {engine.host}"
        _LOGGER.info(
            "serving engines %d to %d of %d; the first frontend is %s, port %d",
            engine.ranks[0],
            engine.ranks[-1],
            engine.data_parallel_size,
            first,
            engine.meeting_port,
        )
    if heritage.predecessor is not None:
        _LOGGER.info("taking over from process %d, with its engines", heritage.predecessor.pid)
        return
    if config.engine.managed:
        return
    _LOGGER.info(
        "waiting for %d engine(s) at %s",
        config.engine.data_parallel_size,
        client.handshake_address,
    )
    if config.engine.arguments:
        _LOGGER.warning(
            "no engine is started here, so nobody reads: %s", " ".join(config.engine.arguments)
        )


def _url(scheme: str, listener: Listener) -> str:
    name = listener.socket.getsockname()
    if not isinstance(name, tuple):
        return listener.name
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{scheme}://{host}:{name[1]}"
