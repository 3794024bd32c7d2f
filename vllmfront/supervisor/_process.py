"""One child process and its whole tree, as a block."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from vllmfront.errors import StartupFailed

_REAPER = Path(__file__).with_name("_reaper.py")

_KILL_BUDGET = 5.0
"""Seconds from SIGKILL to the end: the reaper's own budget and its report."""

_REPORT_LINES = 20
"""Output lines that an error message repeats."""


@attrs.frozen(kw_only=True)
class ProcessSpec:
    """What to run; its input is empty, its output goes to our stderr line by line."""

    argv: Sequence[str]
    prefix: str = ""
    """Stands before each line of output, a blank included."""

    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Added to what we inherited ourselves."""

    leftovers: Sequence[str] = ()
    """Files of ours that are removed when we are killed while the process runs."""

    stop_budget: float = attrs.field(default=5.0, validator=attrs.validators.ge(0))
    """Seconds from SIGTERM to SIGKILL."""


@attrs.frozen(kw_only=True)
class ProcessExit:
    """How a process ended."""

    status: int
    """Its exit status, or minus the signal that killed it."""

    tail: Sequence[str] = ()
    """Its last lines of output, oldest first."""

    def describe(self) -> str:
        """Say how it ended, as the end of a sentence."""
        if self.status >= 0:
            return f"ended with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = "an unknown signal"
        return f"was killed by {name} ({-self.status})"

    def report(self) -> str:
        """Say how it ended, and repeat its last lines of output."""
        return self.describe() + self.last_lines()

    def last_lines(self) -> str:
        """Repeat the last lines of output, as the end of a sentence."""
        if not self.tail:
            return " and had printed nothing"
        lines = "\n".join(f"  | {line}" for line in self.tail[-_REPORT_LINES:])
        return f"; its last lines were:\n{lines}"


class _Reports:
    """What the reaper says, one JSON object at a time."""

    def __init__(self, stream: trio.lowlevel.FdStream) -> None:
        self._stream = stream
        self._rest = b""

    async def next(self) -> dict[str, Any] | None:
        """Return the next report; None when the reaper is gone."""
        while b"\n" not in self._rest:
            data = await self._stream.receive_some()
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        report: dict[str, Any] = json.loads(line)
        return report


class ManagedProcess:
    """A running child; opened by ``open_process``."""

    def __init__(self, pid: int, control: trio.lowlevel.FdStream, reports: _Reports) -> None:
        self.pid = pid
        self._control = control
        self._reports = reports
        self._ended = trio.Event()
        self._exit: ProcessExit | None = None

    def __repr__(self) -> str:
        state = "running" if self._exit is None else self._exit.describe()
        return f"<ManagedProcess pid={self.pid} {state}>"

    @property
    def exit(self) -> ProcessExit | None:
        """How it ended; None while it runs."""
        return self._exit

    async def wait(self) -> ProcessExit:
        """Wait until the process has ended and its whole tree is gone."""
        await self._ended.wait()
        assert self._exit is not None
        return self._exit

    def terminate(self) -> None:
        """Send SIGTERM to the process group; nothing when it has ended."""
        self._command(b"T")

    def kill(self) -> None:
        """Send SIGKILL to the whole tree; nothing when it has ended."""
        self._command(b"K")

    async def stop(self, budget: float) -> ProcessExit:
        """Terminate, wait *budget* seconds at most, kill, and wait for the end.

        Cancelled, it leaves the process to the end of the ``open_process`` block.
        """
        self.terminate()
        with trio.move_on_after(budget):
            await self._ended.wait()
        self.kill()
        return await self.wait()

    def _command(self, command: bytes) -> None:
        if self._exit is None:
            # The reaper may be leaving at this moment.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control.fileno(), command)

    async def watch(self) -> None:
        """Notice the end of the process; one task of ``open_process`` does it at a time."""
        if self._exit is not None:
            return
        report = await self._reports.next()
        if report is None:
            # Somebody killed the reaper: its death has killed the child, but not its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            report = {"status": None, "tail": ["(the supervising process was killed)"]}
        status = report["status"]
        # A child that outlives SIGKILL is one that the kernel holds.
        status = -signal.SIGKILL if status is None else status
        self._exit = ProcessExit(status=status, tail=tuple(report["tail"]))
        self._ended.set()


@asynccontextmanager
async def open_process(spec: ProcessSpec) -> AsyncGenerator[ManagedProcess]:
    """Run a child process for as long as the block lasts, in a session of its own.

    However we end, SIGKILL included, the child and all its descendants are gone within seconds.
    Leaving the block terminates it, kills what is left after ``spec.stop_budget`` and waits for
    the end, also when the block was cancelled.

    Raises:
        StartupFailed: The program cannot be run.
    """
    async with _open_reaper(spec) as (control, reports):
        pid = await _start_child(spec, control, reports)
        process = ManagedProcess(pid, control, reports)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.watch, name=f"process {pid}")
                yield process
                nursery.cancel_scope.cancel(reason="the process block is over")
        finally:
            with trio.move_on_after(spec.stop_budget + _KILL_BUDGET, shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process.watch, name=f"end of process {pid}")
                    await process.stop(spec.stop_budget)


@asynccontextmanager
async def _open_reaper(
    spec: ProcessSpec,
) -> AsyncGenerator[tuple[trio.lowlevel.FdStream, _Reports]]:
    """Start the reaper; leaving the block makes it kill everything and waits for it."""
    control_read, control_write = os.pipe()
    report_read, report_write = os.pipe()
    control, report = trio.lowlevel.FdStream(control_write), trio.lowlevel.FdStream(report_read)
    async with report, control:
        try:
            # No parent-death signal here: Trio forks in a worker thread, and the signal would
            # be bound to that thread. The pipe does it.
            reaper = await trio.lowlevel.open_process(
                [sys.executable, "-I", "-S", str(_REAPER), str(control_read), str(report_write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(control_read, report_write),
                start_new_session=True,
                env={**os.environ, **spec.environment},
            )
        finally:
            os.close(control_read)
            os.close(report_write)
        try:
            yield control, _Reports(report)
        finally:
            with trio.move_on_after(_KILL_BUDGET, shield=True) as scope:
                await control.aclose()
                await reaper.wait()
            if scope.cancelled_caught:
                reaper.kill()


async def _start_child(
    spec: ProcessSpec, control: trio.lowlevel.FdStream, reports: _Reports
) -> int:
    request = {
        "argv": list(spec.argv),
        "prefix": spec.prefix,
        "leftovers": list(spec.leftovers),
    }
    with contextlib.suppress(trio.BrokenResourceError):
        await control.send_all(json.dumps(request).encode() + b"\n")
    report = await reports.next()
    if report is None:
        raise StartupFailed(f"cannot run {spec.argv[0]}: its supervising process was killed")
    if "error" in report:
        raise StartupFailed(f"cannot run {report['error']}")
    pid: int = report["pid"]
    return pid
