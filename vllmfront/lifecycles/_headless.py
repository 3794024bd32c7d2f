"""``serve --headless``: a node that runs engines for a frontend on another one.

::

    root            one_for_one, no restarts: what fails here ends the program
    └─ engine       as under a frontend: one supervisor for each process that runs engines
       └─ process   ready once it has lived for a while, since nobody tells us how it does
"""

import logging
import shlex
from collections.abc import Callable

import attrs
import trio

from vllmfront.errors import EngineDied, StartupFailed
from vllmfront.lifecycles._command import ENVIRONMENT, check_interpreter, engine_command
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._ending import Ending
from vllmfront.lifecycles._engine import REAP_BUDGET, STOP_BUDGET
from vllmfront.lifecycles._engine_config import DEFAULT_HANDSHAKE_PORT
from vllmfront.lifecycles._engine_tree import supervised_processes
from vllmfront.lifecycles._model import steps_together
from vllmfront.lifecycles._serve import told_by_the_lowest
from vllmfront.lifecycles._service import open_service
from vllmfront.lifecycles._units import EngineUnit, plan_units
from vllmfront.supervisor import (
    ManagedProcess,
    ProcessSpec,
    RestartPolicy,
    Shutdown,
    Supervisor,
    open_process,
    wait_any,
)

_LOGGER = logging.getLogger(__name__)

_SETTLED = 60.0
"""Seconds after which an engine's end is no mistake of configuration any more, most likely.

One that finds no frontend gives up after five minutes, and is started again.
"""


async def serve_headless(
    config: ServeConfig, *, reload_log_level: Callable[[], str] = lambda: "the log level stays"
) -> None:
    """Run engines until a signal asks for the end.

    Args:
        config: Which engines, and where their frontend is.
        reload_log_level: Called at SIGHUP; returns what it did, for the log.

    Raises:
        VllmFrontError: They did not start, or ended too often.
    """
    config.check()
    units = plan_units(config.engine, lockstep=await steps_together(config))
    shutdown = Shutdown(budget=config.server.shutdown_timeout, margin=STOP_BUDGET + REAP_BUDGET)
    async with open_service(
        shutdown, reload_log_level=reload_log_level, hand_over=_refuse_upgrade
    ) as service:
        ending = Ending()
        engines = [
            HeadlessEngine(config=config, unit=unit, shutdown=shutdown, ending=ending)
            for unit in units
        ]
        tree = Supervisor(
            "root",
            [supervised_processes(engines, config.engine.restart, shutdown)],
            RestartPolicy(intensity=0),
            shutdown=shutdown,
        )
        await service.notifier.send(READY=1, STATUS="running engines for another node")
        with told_by_the_lowest():
            await tree.run(shutdown.requested)
        await service.notifier.send(STOPPING=1)
    _LOGGER.info("stopped")


def _refuse_upgrade() -> None:
    _LOGGER.warning("no upgrade: no clients are served here; restart this process instead")


@attrs.frozen(kw_only=True)
class HeadlessEngine:
    """Runs a process with engines that somebody else talks to."""

    config: ServeConfig
    unit: EngineUnit
    shutdown: Shutdown
    ending: Ending
    """Shared by all processes of this node."""

    @property
    def stop_budget(self) -> float:
        """Seconds from SIGTERM to SIGKILL: the engine ends what it runs in this time."""
        return max(self.config.server.shutdown_timeout, STOP_BUDGET)

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child; any end that nobody has asked for is a failure.

        Raises:
            ConfigurationError: There is no interpreter with vLLM.
            StartupFailed: The process ended soon after its start.
            EngineDied: It ended later.
        """
        await check_interpreter(self.config.engine.python)
        spec = self._spec()
        _LOGGER.info("starting %s: %s", self.unit.title, shlex.join(spec.argv))
        async with trio.open_nursery() as nursery:
            ends = self.ending.begin(nursery, stop)
            async with open_process(spec) as process:
                # Outlives the block on purpose: also what is being stopped can be hurried.
                nursery.start_soon(self._kill_when_hurried, process)  # noqa: ASYNC111 (as said)
                settled = await self._wait_settled(process, ends)
                if settled:
                    task_status.started()
                    await wait_any(ends.wait, process.wait)
                by_itself = process.exit is not None
            if not by_itself:
                await stop.wait()
            nursery.cancel_scope.cancel(reason="the engine's process has ended")
        end = process.exit
        assert end is not None
        if not by_itself:
            _LOGGER.info("%s's process %d is gone", self.unit.title, process.pid)
        elif settled:
            raise EngineDied(f"{self.unit.title} {end.report()}")
        else:
            raise StartupFailed(f"soon after its start, {self.unit.title} {end.report()}")

    async def _wait_settled(self, process: ManagedProcess, stop: trio.Event) -> bool:
        """Return whether the process has lived long enough to be taken for a good one."""
        with trio.move_on_after(_SETTLED) as scope:
            await wait_any(stop.wait, process.wait)
        return scope.cancelled_caught

    def _spec(self) -> ProcessSpec:
        engine = self.config.engine
        port = engine.handshake_port or DEFAULT_HANDSHAKE_PORT
        return ProcessSpec(
            argv=engine_command(self.config.model.model, engine, self.unit, port),
            prefix=self.unit.prefix,
            environment=ENVIRONMENT,
            stop_budget=self.stop_budget,
        )

    async def _kill_when_hurried(self, process: ManagedProcess) -> None:
        await self.shutdown.hurried.wait()
        process.kill()
