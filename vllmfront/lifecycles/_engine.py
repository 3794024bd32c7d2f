"""The managed engine: a process tree whose end is an event that everybody is told of."""

import logging
import shlex
from collections.abc import Sequence

import attrs
import trio

from vllmfront.engine import EngineClient, EngineState
from vllmfront.errors import EngineDied, StartupFailed, VllmFrontError
from vllmfront.lifecycles._command import ENVIRONMENT, check_interpreter, engine_command
from vllmfront.lifecycles._config import EngineConfig
from vllmfront.lifecycles._custody import EngineCustody
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

_LINGER = 10.0
"""Seconds that a process may outlive its engine, to find out itself and say its last words.

vLLM's launcher takes two on an idle machine; nobody waits meanwhile, all streams have ended.
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

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child: ready at once, because the client says what state it is in.

        Raises:
            ConfigurationError: There is no interpreter with vLLM.
            StartupFailed: The process ended before the engine was ready.
            EngineDied: It ended later, or the engine in it did.
        """
        task_status.started()
        await check_interpreter(self.config.python)
        with one_error():
            async with trio.open_nursery() as nursery:
                failure = await self._run_process(nursery, stop)
                nursery.cancel_scope.cancel(reason="the engine's process has ended")
        if failure is not None:
            self.client.give_up(failure)
            raise failure

    async def _run_process(self, nursery: trio.Nursery, stop: trio.Event) -> VllmFrontError | None:
        """Run the process; return what went wrong, or None when it was stopped."""
        spec = self._spec()
        if not self.custody.inherits:
            _LOGGER.info("starting the managed engine: %s", shlex.join(spec.argv))
        failure: VllmFrontError | None = None
        async with self.custody.open(spec) as process:
            nursery.start_soon(self._kill_when_hurried, process)
            await self._wait_end(process, stop)
            if not self.custody.ours:
                _LOGGER.info("the managed engine, process %d, goes on without us", process.pid)
                return None
            if not stop.is_set():
                failure = await self._explain(process)
            else:
                _LOGGER.info(
                    "stopping the managed engine, process %d; it is killed in %g s",
                    process.pid,
                    STOP_BUDGET,
                )
                self.client.expect_end()
        _LOGGER.info("the managed engine's process %d is gone", process.pid)
        return failure

    async def _wait_end(self, process: ManagedProcess, stop: trio.Event) -> None:
        """Return when the engine is to end, or has, unless it is another generation's by then."""
        while True:
            await wait_any(stop.wait, process.wait, self.client.wait_lost)
            if self.custody.ours or stop.is_set():
                return
            await wait_any(stop.wait, self.custody.wait_ours)

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

    async def _explain(self, process: ManagedProcess) -> VllmFrontError:
        """Say why the engine is gone; tells the client, and with it every stream."""
        loading = self.client.state is EngineState.LOADING
        error = self.client.error
        if process.exit is None and not isinstance(error, StartupFailed):
            _LOGGER.error("the engine is gone (%s); waiting for its process to end", error)
            with trio.move_on_after(_LINGER):
                await process.wait()
        by_itself = process.exit is not None
        end = process.exit or await process.stop(STOP_BUDGET)
        # Clients learn how it ended; what it printed is the operator's.
        self.client.report_death(f"The engine process {end.describe()}.")
        if loading:
            return StartupFailed(f"before it was ready, the managed engine {end.report()}")
        reason = f" ({error})" if error is not None else ""
        if by_itself:
            return EngineDied(f"the managed engine{reason} {end.report()}")
        return EngineDied(f"the managed engine failed{reason}{end.last_lines()}")
