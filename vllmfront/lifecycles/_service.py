"""The server as a service: what signals ask of it, and what a service manager learns of it."""

import functools
import operator
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.engine import EngineState
from vllmfront.errors import VllmFrontError
from vllmfront.lifecycles._last_resort import serve_last_resort
from vllmfront.lifecycles._one_error import one_error
from vllmfront.supervisor import (
    Notifier,
    Reloads,
    Shutdown,
    SignalActions,
    microseconds,
    serve_extensions,
    serve_signals,
    serve_watchdog,
    watchdog_interval,
)

_STOP_MARGIN = 5.0
"""Seconds more than the program's own deadline that a service manager waits for its end."""

_LAST_WORD_BUDGET = 1.0
"""Seconds for saying why the program failed."""


@attrs.frozen(kw_only=True)
class Service:
    """The ways between the world outside and the parts of a server."""

    notifier: Notifier
    reloads: Reloads
    """What SIGHUP reads anew; each part puts its own in."""


@asynccontextmanager
async def open_service(
    shutdown: Shutdown,
    *,
    reload_log_level: Callable[[], str],
    hand_over: Callable[[], None] | None = None,
    environ: Mapping[str, str] = os.environ,
    signals_by_kind: bool = False,
) -> AsyncGenerator[Service]:
    """Heed signals and the service manager's watchdog for as long as the block runs.

    A program that has not ended long after it should have is ended here, too.

    Args:
        shutdown: What SIGTERM and SIGINT turn to.
        reload_log_level: Called at SIGHUP; returns what it did, for the log.
        hand_over: Called at SIGUSR2: starts the hand-over to a new process, and returns at once.
        environ: Tells of the service manager.
        signals_by_kind: As in ``SignalActions``.

    Raises:
        VllmFrontError: What ended the block; one error, told to the service manager as well.
    """
    service = Service(notifier=Notifier.from_environment(environ), reloads=Reloads())
    actions = SignalActions(
        reloads=service.reloads,
        around_reload=service.notifier.around_reload,
        hand_over=hand_over,
        by_kind=signals_by_kind,
    )
    try:
        with one_error(), service.reloads.offering("log level", reload_log_level):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_signals, shutdown, actions)
                nursery.start_soon(serve_last_resort, shutdown)
                interval = watchdog_interval(environ, os.getpid())
                if interval is not None:
                    nursery.start_soon(serve_watchdog, service.notifier, interval)
                yield service
                nursery.cancel_scope.cancel(reason="everything has ended")
    except VllmFrontError as error:
        with trio.move_on_after(_LAST_WORD_BUDGET, shield=True):
            await service.notifier.send(STATUS=f"failed: {error}")
        raise


@attrs.frozen(kw_only=True)
class ServiceReport:
    """The last child to start and the first to stop: it speaks for all the others."""

    notifier: Notifier
    wait_state: Callable[[Callable[[EngineState], bool]], Awaitable[EngineState]]
    """Returns the engine's first state that satisfies a predicate, maybe the present one."""

    loaded: trio.Event
    """Set when the model's files have been read."""

    shutdown: Shutdown
    describe: Callable[[], str]
    """Says how the server does, in one line."""

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child: tells of each change until stopped, and then of the end."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_ready, name="service readiness")
            nursery.start_soon(self._tell_states, name="service status")
            await stop.wait()
            nursery.cancel_scope.cancel(reason="the server is ending")
        await self._tell_end()

    async def _tell_ready(self) -> None:
        """Ask for time while files and engine load, and say once that a request would be served."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_extensions, self.notifier)
            await self.loaded.wait()
            await self.wait_state(lambda state: state is EngineState.READY)
            nursery.cancel_scope.cancel(reason="the server is ready")
        await self.notifier.send(READY=1, STATUS=self.describe())

    async def _tell_states(self) -> None:
        state: EngineState | None = None
        while True:
            state = await self.wait_state(functools.partial(operator.is_not, state))
            await self.notifier.send(STATUS=self.describe())

    async def _tell_end(self) -> None:
        """Say that this is the end, and for how long running requests may put it off."""
        if not self.shutdown.requested.is_set():
            await self.notifier.send(STOPPING=1, STATUS="stopping: a part of the server failed")
            return
        left = max(0.0, self.shutdown.end - trio.current_time())
        await self.notifier.send(
            STOPPING=1,
            STATUS=f"stopping: {self.shutdown.reason}",
            EXTEND_TIMEOUT_USEC=microseconds(left + _STOP_MARGIN),
        )
