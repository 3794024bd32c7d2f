"""``frontend``: one frontend under vLLM's supervisor, which runs the engines and us.

::

    main            owns the listener, signals, the one shutdown deadline; watches its parent
    └─ link         the engine client on inherited sockets: engines register, and are lost for good
       └─ root      the tree of children, see ``_tree.py``

The supervisor learns nothing of us but our end: a status of 0 tells it that all is well, though it
keeps its engines then. So it is 0 only where we were told to stop.
"""

import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.api.http import Listener
from vllmfront.control import open_control_plane
from vllmfront.engine import EngineClientConfig, open_engine_client
from vllmfront.errors import VllmFrontError
from vllmfront.lifecycles._api import FLUSH_BUDGET
from vllmfront.lifecycles._client_config import shared_client_config
from vllmfront.lifecycles._control import control_config
from vllmfront.lifecycles._service import open_service
from vllmfront.lifecycles.worker._config import Bootstrap, WorkerConfig
from vllmfront.lifecycles.worker._descriptors import check_descriptors, open_client_listener
from vllmfront.lifecycles.worker._engines import LOSS_GRACE, EngineWatch
from vllmfront.lifecycles.worker._tree import Parts, plan_tree
from vllmfront.supervisor import Parent, Shutdown

_LOGGER = logging.getLogger(__name__)

_LEAST_PATIENCE = 5.0
"""Seconds that the supervisor waits after its SIGTERM at least, before it kills us."""

_FAREWELL = 1.5
"""Seconds of that time for last frames to leave, and for everything to be closed."""

_LEAST_DRAIN = 0.3
"""Seconds that requests go on in any case. The supervisor stops us when an engine has died, maybe
before we have noticed; then they end with what happened, and not as if they had been aborted."""

_END_BUDGET = FLUSH_BUDGET + 1.0
"""Seconds that may pass between the end of the drain and ours."""


class ParentGone(VllmFrontError):
    """Raised when the process that started us has ended: nobody would ever stop us."""


async def serve_worker(  # noqa: ASYNC128 (the child that listens calls it)
    config: WorkerConfig,
    parent: Parent,
    *,
    on_loaded: Callable[[], None] = lambda: None,
    reload_log_level: Callable[[], str] = lambda: "the log level stays",
    environ: Mapping[str, str] = os.environ,
    loss_grace: float = LOSS_GRACE,
    task_status: trio.TaskStatus[Listener] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until a signal asks for the end; ``started()`` once HTTP answers.

    The inherited descriptors are ours from now on, whatever becomes of us.

    Args:
        config: What to serve, how, and on which descriptors.
        parent: Who started us; we end with it.
        on_loaded: Called once, when the model's files have been read.
        reload_log_level: Called at SIGHUP; returns what it did, for the log.
        environ: Where switches are looked up.
        loss_grace: Seconds that we go on after the engines are lost, to say so.
        task_status: Of a nursery's ``start``.

    Raises:
        VllmFrontError: It could not start, or could not go on; one error, with its causes.
    """
    config.check()
    bootstrap, server = config.bootstrap, config.settings.server
    check_descriptors(bootstrap)
    shutdown = Shutdown(budget=drain_budget(server.shutdown_timeout), margin=_END_BUDGET)
    async with (
        # No service manager: it would be that of the supervisor.
        open_service(
            shutdown, reload_log_level=reload_log_level, environ={}, signals_by_kind=True
        ) as service,
        _watch(parent, shutdown) as watch,
        open_engine_client(client_config(config, environ)) as client,
        open_control_plane(client, control_config(config.settings.control)) as control,
    ):
        engines = EngineWatch(client=client, shutdown=shutdown, grace=loss_grace)
        with open_client_listener(bootstrap.listen_fd) as listener:
            _announce(bootstrap, listener, parent)
            parts = Parts(
                settings=config.settings,
                listener=listener,
                client=client,
                control=control,
                engines=engines,
                shutdown=shutdown,
                reloads=service.reloads,
                on_loaded=on_loaded,
            )
            await plan_tree(parts).run(
                shutdown.requested, task_status=_Readiness(task_status, listener)
            )
    failure = engines.loss or watch.error
    if failure is not None:
        raise failure
    _LOGGER.info("stopped")


def drain_budget(shutdown_timeout: float) -> float:
    """Return how long running requests may go on after SIGTERM.

    The supervisor kills us ``max(shutdown_timeout, 5)`` seconds after it, and what has not ended
    until then would end without a word.
    """
    longest = max(shutdown_timeout, _LEAST_PATIENCE) - _FAREWELL
    return max(_LEAST_DRAIN, min(shutdown_timeout, longest))


def client_config(config: WorkerConfig, environ: Mapping[str, str]) -> EngineClientConfig:
    """Make the configuration of a client whose engines somebody else starts."""
    bootstrap, settings = config.bootstrap, config.settings
    return attrs.evolve(
        shared_client_config(settings, environ),
        engine_count=bootstrap.engine_count,
        start_rank=bootstrap.start_rank,
        input_fd=bootstrap.input_fd,
        coordinator_address=bootstrap.coordinator_address,
        output_fd=bootstrap.output_fd,
    )


@attrs.define
class _ParentWatch:
    error: ParentGone | None = None


@asynccontextmanager
async def _watch(parent: Parent, shutdown: Shutdown) -> AsyncGenerator[_ParentWatch]:
    """End the program at once when *parent* ends, in the block."""
    watch = _ParentWatch()

    async def serve() -> None:
        await parent.wait_end()
        reason = f"process {parent.pid}, which has started this one, is gone"
        watch.error = ParentGone(reason)
        shutdown.hurry(reason)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)  # noqa: ASYNC113 (a descriptor remembers an earlier end)
        yield watch
        nursery.cancel_scope.cancel(reason="everything has ended")


class _Readiness:
    """Passes readiness on, with where clients find us."""

    def __init__(self, task_status: trio.TaskStatus[Listener], listener: Listener) -> None:
        self._task_status = task_status
        self._listener = listener

    def started(self, value: None = None) -> None:
        del value
        self._task_status.started(self._listener)


def _announce(bootstrap: Bootstrap, listener: Listener, parent: Parent) -> None:
    first, count = bootstrap.start_rank, bootstrap.engine_count
    engines = f"engine {first}" if count == 1 else f"engines {first} to {first + count - 1}"
    _LOGGER.info(
        "listening on %s, waiting for %s of %d, which process %d starts",
        listener.name,
        engines,
        bootstrap.data_parallel_size,
        parent.pid,
    )
