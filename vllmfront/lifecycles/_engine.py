"""The managed engine: a process tree whose end is an event that everybody is told of."""

import logging
import shlex
from collections.abc import Sequence

import attrs
import trio

from vllmfront.engine import EngineClient, EngineState, RankState
from vllmfront.engine.transport import host_of
from vllmfront.errors import EngineDied, EngineStalled, StartupFailed, VllmFrontError
from vllmfront.lifecycles._command import ENVIRONMENT, check_interpreter, engine_command
from vllmfront.lifecycles._custody import EngineCustody
from vllmfront.lifecycles._ending import Ending
from vllmfront.lifecycles._engine_config import EngineConfig
from vllmfront.lifecycles._one_error import one_error
from vllmfront.lifecycles._units import EngineUnit
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
    unit: EngineUnit
    client: EngineClient
    shutdown: Shutdown
    custody: EngineCustody
    socket_files: Sequence[str] = ()
    """Unix sockets of ours that nobody would remove if we were killed."""

    stop_budget: float = STOP_BUDGET
    ending: Ending = attrs.field(factory=Ending)
    """Shared by all processes of this node."""

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
                ends = self.ending.begin(nursery, stop)
                await wait_any(ends.wait, self.client.introduced.wait)
                failure = None
                if self.client.introduced.is_set():
                    failure = await self._run_process(nursery, ends, task_status)
                if ends.is_set() and failure is None:
                    await stop.wait()
                nursery.cancel_scope.cancel(reason="the engine's process has ended")
        if failure is not None:
            raise failure

    async def _run_process(  # noqa: ASYNC128 (as above)
        self, nursery: trio.Nursery, stop: trio.Event, task_status: trio.TaskStatus[None]
    ) -> VllmFrontError | None:
        """Run the process; return what went wrong, or None when it was stopped."""
        spec = self._spec()
        if not self.custody.inherits:
            _LOGGER.info("starting %s: %s", self.unit.title, shlex.join(spec.argv))
            for rank in self.unit.ranks:
                self.client.expect_engine(rank)
        failure: VllmFrontError | None = None
        async with self.custody.open(spec) as process:
            nursery.start_soon(self._kill_when_hurried, process)
            watch = _Watch(self.unit, self.client, self.custody, process, stop)
            await watch.wait_end(task_status)
            if not self.custody.ours:
                _LOGGER.info("%s, process %d, goes on without us", self.unit.title, process.pid)
                return None
            if not stop.is_set():
                failure = await self._explain(process, watch)
            else:
                _LOGGER.info(
                    "stopping %s, process %d; it is killed in %g s",
                    self.unit.title,
                    process.pid,
                    STOP_BUDGET,
                )
                self.client.expect_end()
        _LOGGER.info("%s's process %d is gone", self.unit.title, process.pid)
        return failure

    def _spec(self) -> ProcessSpec:
        address = self.client.handshake_address
        port = self.config.meeting_port if address is None else host_of(address)[1]
        return ProcessSpec(
            argv=engine_command(self.model, self.config, self.unit, port),
            prefix=self.unit.prefix,
            environment=ENVIRONMENT,
            leftovers=(*self.client.socket_files, *self.socket_files),
            stop_budget=self.stop_budget,
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
        for rank in self.unit.ranks:
            self.client.report_death(f"The engine process {end.describe()}.", rank)
        if not watch.came_up:
            if isinstance(error, StartupFailed) and not by_itself:
                return StartupFailed(f"{error}{end.last_lines()}")
            return StartupFailed(f"before it was ready, {self.unit.title} {end.report()}")
        reason = f" ({error})" if error is not None else ""
        if by_itself:
            return EngineDied(f"{self.unit.title}{reason} {end.report()}")
        return EngineDied(f"{self.unit.title} failed{reason}{end.last_lines()}")


_UP = (RankState.READY, RankState.STALLED)


@attrs.define
class _Watch:
    """Waits for what becomes of one process and the engines in it."""

    unit: EngineUnit
    client: EngineClient
    custody: EngineCustody
    process: ManagedProcess
    stop: trio.Event
    came_up: bool = attrs.field(default=False, init=False)
    loss: VllmFrontError | None = attrs.field(default=None, init=False)
    """Why the engines are gone, where the client was the first to notice."""

    _present: set[int] = attrs.field(init=False)
    """Ranks whose loss would be one: those of other nodes may not have come yet."""

    def __attrs_post_init__(self) -> None:
        self._present = set(self.unit.ranks)

    async def wait_end(self, task_status: trio.TaskStatus[None]) -> None:
        """Return when the engines are to end, or have, unless they are another generation's then.

        Reports them started once all serve.
        """
        ends = (self.stop.wait, self.process.wait, self._wait_lost)
        while True:
            if self.came_up:
                await wait_any(*ends)
            else:
                await wait_any(*ends, self._wait_up)
                if self._are_up():
                    self.came_up = True
                    task_status.started()
                    continue
            if self.custody.ours or self.stop.is_set():
                return
            await wait_any(self.stop.wait, self.custody.wait_ours)

    async def _wait_up(self) -> None:
        while not self._are_up():
            await self.client.wait_change()

    def _are_up(self) -> bool:
        return all(self.client.rank_state(rank)[0] in _UP for rank in self.unit.ranks)

    async def _wait_lost(self) -> None:
        while (loss := self._find_loss()) is None:
            await self.client.wait_change()
        self.loss = loss

    def _find_loss(self) -> VllmFrontError | None:
        if self.client.state is EngineState.FAILED:
            return None  # the client has let go of all of them: the order to stop is on its way
        for rank in self.unit.watched:
            state, error = self.client.rank_state(rank)
            if state is not RankState.DEAD:
                self._present.add(rank)
            elif rank in self._present:
                return EngineDied(f"engine {rank} is lost") if error is None else error.twin()
        return None
