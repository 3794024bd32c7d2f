"""A worker's process, as the main process runs it: the body of a child."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

import attrs
import trio

from vllmfront.errors import ConfigurationError, EngineStalled, VllmFrontError
from vllmfront.interprocess import Handlers, Line, handing_pair, line_pair
from vllmfront.lifecycles._api import FLUSH_BUDGET
from vllmfront.lifecycles.workers._beat import STUCK_SECONDS, wait_stuck
from vllmfront.lifecycles.workers._forwarding import Answering
from vllmfront.lifecycles.workers._host import WorkerHost
from vllmfront.lifecycles.workers._messages import (
    Accepting,
    AdapterIdle,
    Counts,
    EngineSilent,
    Failed,
    Forwarded,
    Hurry,
    Leaving,
    Serving,
    Stop,
)
from vllmfront.supervisor import ChildSpec, wait_any

LIFELINE, LINE = "VLLMFRONT_WORKER_LIFELINE", "VLLMFRONT_WORKER_LINE"
"""Variables that name the two descriptors which a worker needs to learn everything else."""

COMMAND = (sys.executable, "-m", "vllmfront", "worker")

_KILL_BUDGET = 5.0
"""Seconds for a killed process to be gone; only one that the kernel holds takes longer."""

_STOP_MARGIN = 2.0
"""Seconds beyond the drain and its last words for a worker to end by itself."""

_MAINS_ALONE = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
)
"""Variables by which a service manager speaks to the main process."""


class WorkerDied(VllmFrontError):
    """Raised when a worker's process has ended, and nobody had asked for it."""


@attrs.frozen(kw_only=True, eq=False)
class WorkerProcess:
    """Runs one worker."""

    number: int
    host: WorkerHost
    answering: Answering
    """Answers what the worker cannot answer by itself."""

    def as_child(self, shutdown_timeout: float) -> ChildSpec:
        """Return the child that runs it; the first one is ready once it serves."""
        return ChildSpec(
            name=f"worker-{self.number}",
            run=self.run,
            # Its model may have to be fetched.
            start_budget=float("inf"),
            stop_budget=shutdown_timeout + 2 * FLUSH_BUDGET + _STOP_MARGIN,
        )

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child.

        Raises:
            ConfigurationError: It could not start, for a reason that the operator can mend.
            WorkerDied: It has ended by itself, or was killed.
        """
        if self.number > 1:
            # They start at the same time; a first one that cannot start has shown that by now.
            task_status.started()
            if not await self._wait_wanted(stop):
                return
        slots = self.host.client.worker_slots
        assert slots is not None
        inputs, outputs = await slots.lend(self.number - 1)
        try:
            await self._run_process(stop, task_status, inputs, outputs)
        finally:
            self.host.counts.bury(self.number)
            self.host.board.clear(self.number)
            slots.take_back(self.number - 1)

    async def _wait_wanted(self, stop: trio.Event) -> bool:
        """Return once this worker is wanted; False: nobody is any more."""
        while self.number > self.host.wanted and not stop.is_set():
            await wait_any(stop.wait, self.host.wait_change)
        return not stop.is_set()

    async def _run_process(  # noqa: ASYNC128 (the worker's first words call it)
        self, stop: trio.Event, task_status: trio.TaskStatus[None], inputs: int, outputs: int
    ) -> None:
        with contextlib.ExitStack() as stack:
            ours, theirs = line_pair()
            life = _Life(self.number, self.host, stop, task_status)
            line = stack.enter_context(Line(ours, life.handlers(self.answering)))
            giving, taking = handing_pair()
            life.giving = stack.enter_context(giving)
            # What a worker that dies has not taken out is still there for another one.
            stack.enter_context(taking)
            lifeline, held = os.pipe()
            stack.callback(os.close, held)
            passed = [theirs.fileno(), taking.fileno(), lifeline]
            try:
                process = await trio.lowlevel.open_process(
                    COMMAND,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[*passed, self.host.board.descriptor, inputs, outputs],
                    env=_environment(os.environ, line=passed[0], lifeline=lifeline),
                    # Signals of a terminal are for the main process, which tells us.
                    start_new_session=True,
                )
            finally:
                theirs.close()
                os.close(lifeline)
            line.tell(self.host.welcome(self.number, inputs, outputs, taking.fileno()))
            life.stack = stack
            try:
                await life.live(process, line)
            finally:
                self.host.give_back(taking)


@attrs.define(eq=False)
class _Life:
    """One process of a worker."""

    number: int
    host: WorkerHost
    stop: trio.Event
    task_status: trio.TaskStatus[None]
    giving: socket.socket = attrs.field(init=False)
    stack: contextlib.ExitStack = attrs.field(init=False)
    failure: Failed | None = None

    def handlers(self, answering: Answering) -> Handlers:
        """Return what is done with what the worker says."""
        handlers = Handlers()
        handlers.hear(Accepting, self._note_accepting)
        handlers.hear(Serving, self._note_serving)
        handlers.hear(Leaving, self._note_leaving)
        handlers.hear(Failed, self._note_failure)
        handlers.hear(EngineSilent, self._note_silence)
        handlers.hear(Counts, self._note_counts)
        handlers.hear(AdapterIdle, self._note_idle)
        handlers.answer(Forwarded, answering.answer)
        return handlers

    async def live(self, process: trio.Process, line: Line) -> None:
        """Run until the process has ended; stop it when that is asked for.

        Raises:
            ConfigurationError: It could not start, for a reason that the operator can mend.
            WorkerDied: It has ended by itself, or was killed.
        """
        host = self.host
        host.pids[self.number] = process.pid
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(line.serve)
                nursery.start_soon(self._pass_on_shutdown, line)
                nursery.start_soon(self._kill_when_stuck, process)
                with host.lines.including(self.number, line):
                    host.tell_state()
                    await wait_any(process.wait, self.stop.wait)
                    if process.returncode is None:
                        if not host.shutdown.requested.is_set():
                            line.tell(Stop("a part of the server has failed", None))
                        await process.wait()
                with trio.move_on_after(FLUSH_BUDGET):
                    await line.gone.wait()  # its last words
                nursery.cancel_scope.cancel(reason="the worker's process has ended")
        finally:
            host.stop_taking(self.number)
            host.serving.discard(self.number)
            host.loans.end(self.number)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with trio.move_on_after(_KILL_BUDGET, shield=True):
                await process.wait()
            del host.pids[self.number]
        if not self.stop.is_set():
            raise self._error(process)

    async def _pass_on_shutdown(self, line: Line) -> None:
        shutdown = self.host.shutdown
        await shutdown.requested.wait()
        seconds = max(0.0, shutdown.deadline - trio.current_time())
        line.tell(Stop(shutdown.reason or "told to stop", seconds))
        await shutdown.hurried.wait()
        line.tell(Hurry(shutdown.reason or "told to stop"))

    async def _kill_when_stuck(self, process: trio.Process) -> None:
        host = self.host
        await wait_stuck(
            host.board.pages[self.number],
            lambda: self.number in host.takers and not host.shutdown.requested.is_set(),
        )
        silence = f"its event loop had stood still for {STUCK_SECONDS:g} seconds"
        self.failure = Failed(silence, configuration=False)
        process.kill()

    def _note_accepting(self, _: Accepting) -> None:
        self.stack.enter_context(self.host.taking(self.number, self.giving))

    def _note_serving(self, _: Serving) -> None:
        self.host.note_serving(self.number)
        if self.number == 1:
            self.task_status.started()

    def _note_leaving(self, _: Leaving) -> None:
        self.host.stop_taking(self.number)

    def _note_failure(self, failure: Failed) -> None:
        self.failure = failure

    def _note_counts(self, counts: Counts) -> None:
        self.host.counts.record(self.number, counts)

    def _note_idle(self, idle: AdapterIdle) -> None:
        self.host.loans.take_back(self.number, idle.lora_id)

    def _note_silence(self, silent: EngineSilent) -> None:
        """Let whoever runs an engine that does not answer its requests start it anew."""
        view = self.host.client.view()
        if any(
            one.rank == silent.rank and one.incarnation == silent.incarnation for one in view.ranks
        ):
            self.host.client.report_death(EngineStalled(silent.text), silent.rank)

    def _error(self, process: trio.Process) -> VllmFrontError:
        status = process.returncode
        assert status is not None
        how = f"ended with status {status}"
        if status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        if self.failure is None:
            return WorkerDied(f"process {process.pid} of worker {self.number} {how}")
        if self.failure.configuration:
            return ConfigurationError(self.failure.text)
        text = f"process {process.pid} of worker {self.number} {how}: {self.failure.text}"
        return WorkerDied(text)


def _environment(environ: Mapping[str, str], *, line: int, lifeline: int) -> dict[str, str]:
    inherited = {name: value for name, value in environ.items() if name not in _MAINS_ALONE}
    return {**inherited, LINE: str(line), LIFELINE: str(lifeline)}
