"""The managed engine: a process tree whose end is an event that everybody is told of."""

import logging
import shlex
from collections.abc import Sequence

import attrs
import trio

from vllmfront.engine import EngineClient, EngineState
from vllmfront.errors import EngineDied, EngineStalled, StartupFailed, VllmFrontError
from vllmfront.lifecycles._command import ENVIRONMENT, check_interpreter, engine_command
from vllmfront.lifecycles._custody import EngineCustody
from vllmfront.lifecycles._engine_config import EngineConfig
from vllmfront.lifecycles._one_error import one_error
from vllmfront.supervisor import (
    ManagedProcess,
    ProcessSpec,
    Shutdown,
    wait_any,
)

_LOGGER = logging.getLogger(__name__)

STOP_BUDGET = 5.0
"""Seconds from SIGTERM to SIGKILL, as the reference: its requests have ended before."""

REAP_BUDGET = 5.0
"""Seconds for a killed process tree to be gone and reported."""

_LINGER = 5.0
"""Seconds that a process may outlive its engine, to find out itself and say its last words.

vLLM's launcher takes two on an idle machine; requests that wait for the next engine pay for it.
"""


@attrs.frozen(kw_only=True)
class ManagedEngine:
    """Runs the engine's process, and tells the client when it ends."""

    model: str
    config: EngineConfig
    client: EngineClient
    shutdown: Shutdown
    custody: EngineCustody
    socket_files: Sequence[str] = ()
    """Unix sockets of ours that nobody would remove if we were killed."""

    async def run(  # noqa: ASYNC128 (the watch over its process calls it)
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child: ready once the engine serves.

        Any end that nobody has asked for is a failure, a status of 0 as well.

        Raises:
            ConfigurationError: There is no interpreter with vLLM.
            StartupFailed: The process ended before the engine was ready, or was too slow.
            EngineDied: It ended later, or the engine in it did.
        """
        if not self.custody.inherits:
            await check_interpreter(self.config.python)
        with one_error():
            async with trio.open_nursery() as nursery:
                failure = await self._run_process(nursery, stop, task_status)
                nursery.cancel_scope.cancel(reason="the engine's process has ended")
        if failure is not None:
            raise failure

    async def _run_process(  # noqa: ASYNC128 (as above)
        self, nursery: trio.Nursery, stop: trio.Event, task_status: trio.TaskStatus[None]
    ) -> VllmFrontError | None:
        """Run the process; return what went wrong, or None when it was stopped."""
        spec = self._spec()
        if not self.custody.inherits:
            _LOGGER.info("starting the managed engine: %s", shlex.join(spec.argv))
            self.client.expect_engine()
        failure: VllmFrontError | None = None
        async with self.custody.open(spec) as process:
            nursery.start_soon(self._kill_when_hurried, process)
            watch = _Watch(self.client, self.custody, process, stop)
            await watch.wait_end(task_status)
            if not self.custody.ours:
                _LOGGER.info("the managed engine, process %d, goes on without us", process.pid)
                return None
            if not stop.is_set():
                failure = await self._explain(process, watch)
            else:
                _LOGGER.info(
                    "stopping the managed engine, process %d; it is killed in %g s",
                    process.pid,
                    STOP_BUDGET,
                )
                self.client.expect_end()
        _LOGGER.info("the managed engine's process %d is gone", process.pid)
        return failure

    def _spec(self) -> ProcessSpec:
        address = self.client.handshake_address
        assert address is not None
        port = int(address.rpartition(":")[2])
        return ProcessSpec(
            argv=engine_command(self.model, self.config, port),
            prefix="(engine) ",
            environment=ENVIRONMENT,
            leftovers=(*self.client.socket_files, *self.socket_files),
            stop_budget=STOP_BUDGET,
        )

    async def _kill_when_hurried(self, process: ManagedProcess) -> None:
        await self.shutdown.hurried.wait()
        self.client.expect_end()
        process.kill()

    async def _explain(self, process: ManagedProcess, watch: "_Watch") -> VllmFrontError:
        """Say why the engine is gone; tells the client, and with it every request."""
        error = watch.loss
        if process.exit is None and not isinstance(error, StartupFailed | EngineStalled):
            _LOGGER.info("waiting up to %g s for the process of the lost engine to end", _LINGER)
            with trio.move_on_after(_LINGER):
                await process.wait()
        by_itself = process.exit is not None
        end = process.exit or await process.stop(STOP_BUDGET)
        # Clients learn how it ended; what it printed is the operator's.
        self.client.report_death(f"The engine process {end.describe()}.")
        if not watch.came_up:
            if isinstance(error, StartupFailed) and not by_itself:
                return StartupFailed(f"{error}{end.last_lines()}")
            return StartupFailed(f"before it was ready, the managed engine {end.report()}")
        reason = f" ({error})" if error is not None else ""
        if by_itself:
            return EngineDied(f"the managed engine{reason} {end.report()}")
        return EngineDied(f"the managed engine failed{reason}{end.last_lines()}")


@attrs.define
class _Watch:
    """Waits for what becomes of one process and the engine in it."""

    client: EngineClient
    custody: EngineCustody
    process: ManagedProcess
    stop: trio.Event
    came_up: bool = attrs.field(default=False, init=False)
    loss: VllmFrontError | None = attrs.field(default=None, init=False)
    """Why the engine is gone, where the client was the first to notice."""

    async def wait_end(self, task_status: trio.TaskStatus[None]) -> None:
        """Return when the engine is to end, or has, unless it is another generation's by then.

        Reports it started once it serves.
        """
        ends = (self.stop.wait, self.process.wait, self._wait_lost)
        while True:
            if self.came_up:
                await wait_any(*ends)
            else:
                await wait_any(*ends, self._wait_up)
                if self.client.state is EngineState.READY:
                    self.came_up = True
                    task_status.started()
                    continue
            if self.custody.ours or self.stop.is_set():
                return
            await wait_any(self.stop.wait, self.custody.wait_ours)

    async def _wait_up(self) -> None:
        await self.client.wait_state(lambda state: state is EngineState.READY)

    async def _wait_lost(self) -> None:
        self.loss = await self.client.wait_lost()
