"""The managed engine's supervisor: its process is started again as the operator's policy says.

::

    engine          a handle, up at once; its own window and backoff; its failure ends the program
    └─ process      ready once the engine in it serves, so the window's clock stands while it loads

Engines that do not know each other have a process each, and each process such a supervisor::

    engine          a handle; restarts nothing itself
    ├─ rank-0       a handle with its own window and backoff; its failure is that of all
    │  └─ process
    └─ rank-1
       └─ process
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio

from vllmfront.engine import EngineState
from vllmfront.errors import (
    EngineDied,
    EngineUnavailable,
    FirstStartFailed,
    Reason,
    RestartLimitExceeded,
)
from vllmfront.lifecycles._engine import REAP_BUDGET, ManagedEngine
from vllmfront.lifecycles._engine_config import RestartConfig
from vllmfront.lifecycles._units import EngineUnit
from vllmfront.supervisor import (
    ChildFailed,
    ChildSpec,
    Event,
    GaveUp,
    Response,
    RestartDropped,
    RestartPolicy,
    Shutdown,
    Supervisor,
)

ENGINE, PROCESS = "engine", "process"


class EngineProcess(Protocol):
    """What runs one process with engines."""

    @property
    def unit(self) -> EngineUnit:
        """Which engines."""

    @property
    def stop_budget(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child."""


def supervised_engines(
    engines: Sequence[ManagedEngine], restart: RestartConfig, shutdown: Shutdown
) -> ChildSpec:
    """Return the child that runs *engines*, and tells their client when one is started again."""
    return supervised_processes(
        engines, restart, shutdown, [_ClientNotifier(engine, restart).tell for engine in engines]
    )


def supervised_processes(
    engines: Sequence[EngineProcess],
    restart: RestartConfig,
    shutdown: Shutdown,
    observers: Sequence[Callable[[Event], None] | None] = (),
) -> ChildSpec:
    """Return the child that runs all *engines*, starts each again, and fails where one gives up.

    Args:
        engines: The processes, one or more.
        restart: How often each is started again.
        shutdown: The program's end.
        observers: One a process, who gets its events, or none at all.
    """
    told = observers or [None] * len(engines)
    if len(engines) == 1:
        return _supervised(ENGINE, engines[0], restart, shutdown, told[0])
    ranks = [
        _supervised(engine.unit.name, engine, restart, shutdown, observer)
        for engine, observer in zip(engines, told, strict=True)
    ]
    policy = RestartPolicy(intensity=0)
    return Supervisor(ENGINE, ranks, policy, shutdown=shutdown, handle=True).as_child()


def _supervised(
    name: str,
    engine: EngineProcess,
    restart: RestartConfig,
    shutdown: Shutdown,
    on_event: Callable[[Event], None] | None,
) -> ChildSpec:
    """Return the child that runs *engine*, starts it again, and gives it up."""
    process = ChildSpec(
        name=PROCESS,
        run=engine.run,
        # The body counts the time: it knows how far the start has come.
        start_budget=math.inf,
        stop_budget=engine.stop_budget + REAP_BUDGET,
    )
    supervisor = Supervisor(
        name, [process], restart.policy(), shutdown=shutdown, handle=True, on_event=on_event
    )
    body = _SupervisedEngine(supervisor, engine.unit, restart)
    return attrs.evolve(supervisor.as_child(), run=body.run)


@attrs.frozen
class _ClientNotifier:
    """Tells the client when another engine is started, and that none is, once that is so."""

    engine: ManagedEngine
    restart: RestartConfig

    def tell(self, event: Event) -> None:
        """Be the observer of the supervisor's events."""
        client, unit = self.engine.client, self.engine.unit
        match event:
            case GaveUp(causes=(*_, last)):
                came_up = client.state is not EngineState.LOADING
                verdict = _verdict(unit, self.restart) if came_up else _not_started(unit)
                client.give_up(EngineDied(f"{verdict}: {_line(last)}"))
            case ChildFailed(response=Response.RESTART, delay=float(delay)):
                for rank in unit.ranks:
                    client.delay_engine(delay, rank)
            case RestartDropped() | ChildFailed(response=Response.STOP | Response.DROP):
                client.give_up(
                    EngineUnavailable("The server is shutting down.", reason=Reason.DRAINING)
                )
            case _:
                pass


@attrs.frozen
class _SupervisedEngine:
    supervisor: Supervisor
    unit: EngineUnit
    restart: RestartConfig

    async def run(  # noqa: ASYNC128 (the supervisor calls it)
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child: the supervisor's, whose error is put in an operator's words.

        Raises:
            FirstStartFailed: The engine did not come up.
            RestartLimitExceeded: It ended too often.
        """
        try:
            await self.supervisor.run(stop, task_status=task_status)
        except FirstStartFailed as error:
            raise FirstStartFailed(_not_started(self.unit), error.causes) from error.__cause__
        except RestartLimitExceeded as error:
            raise RestartLimitExceeded(self._account(), error.causes) from error.__cause__

    def _account(self) -> str:
        """Say that it is over, and how it began; the end follows as the cause."""
        [process] = self.supervisor.snapshot().children
        text = _verdict(self.unit, self.restart)
        if process.first_failure != process.last_failure:
            text += f"; its first failure was: {_line(process.first_failure)}"
        return text


def _not_started(unit: EngineUnit) -> str:
    return f"{unit.title} did not start"


def _verdict(unit: EngineUnit, restart: RestartConfig) -> str:
    if restart.enabled:
        return (
            f"{unit.title} failed more often than --engine-restart-intensity "
            f"{restart.intensity} allows, and is not started again"
        )
    return f"{unit.title} failed, and is not started again"


def _line(failure: object) -> str:
    return str(failure).partition("\n")[0].rstrip(".")
