"""One child process and its whole tree, as a block."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from vllmfront.errors import StartupFailed, VllmFrontError
from vllmfront.supervisor._process_spec import ProcessExit, ProcessHandle, ProcessSpec
from vllmfront.supervisor._reaper_link import (
    TREE_VARIABLE,
    ReaperLink,
    collect,
    kill_tree,
    new_token,
)

_LOGGER = logging.getLogger(__name__)

_REAPER = Path(__file__).with_name("_reaper.py")

_KILL_BUDGET = 5.0
"""Seconds from SIGKILL to the end: the reaper's own budget and its report."""

_KILL_INTERVAL = 0.05
"""Seconds between looks for processes that a killed reaper has left."""

_OURS_ALONE = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)
"""Variables by which a service manager speaks to this program; a child must not answer for it."""


class ProcessEnded(VllmFrontError):
    """Raised when a process that is gone should be handed over."""


class ManagedProcess:
    """A running child; opened by ``open_process`` or ``adopt_process``."""

    def __init__(self, pid: int, reaper: int, token: str, link: ReaperLink) -> None:
        self.pid = pid
        self._reaper = reaper
        self._token = token
        self._link = link
        self._ended = trio.Event()
        self._exit: ProcessExit | None = None

    def __repr__(self) -> str:
        state = "handed over" if self.handed_over else "running"
        if self._exit is not None:
            state = self._exit.describe()
        return f"<ManagedProcess pid={self.pid} {state}>"

    @property
    def exit(self) -> ProcessExit | None:
        """How it ended; None while it runs, and once it is not ours any more."""
        return self._exit

    @property
    def handle(self) -> ProcessHandle:
        """What another generation needs to take over; its descriptors keep the process alive.

        It supervises the process only after ``hand_over``, or when this one is dead.
        """
        control, reports = self._link.descriptors
        return ProcessHandle(
            pid=self.pid,
            reaper=self._reaper,
            control=control,
            reports=reports,
            unread=self._link.unread,
            token=self._token,
        )

    @property
    def handed_over(self) -> bool:
        """Whether it is another generation that supervises the process."""
        return self._link.paused

    def hand_over(self) -> ProcessHandle:
        """Let go of the process without stopping it, for a generation that has the descriptors.

        From this moment on nothing is read that the new one should know, ``wait`` waits for ever,
        commands do nothing, and the end of the block leaves the process alone. The tree is killed
        only when the last generation is gone that holds the descriptors; this one does until the
        end of the block.

        Raises:
            ProcessEnded: There is nothing to hand over any more.
        """
        if self._exit is not None:
            raise ProcessEnded(f"process {self.pid} {self._exit.describe()}")
        self._link.pause()
        return self.handle

    def take_back(self) -> None:
        """Supervise the process again, because the one that should have has failed."""
        self._link.resume()

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

    def set_leftovers(self, paths: Sequence[str]) -> None:
        """Replace the files of ours that are removed when we are killed while it runs."""
        self._command(b"L" + json.dumps(list(paths)).encode())

    async def stop(self, budget: float) -> ProcessExit:
        """Terminate, wait *budget* seconds at most, kill, and wait for the end.

        Cancelled, it leaves the process to the end of the block that opened it.
        """
        self.terminate()
        with trio.move_on_after(budget):
            await self._ended.wait()
        self.kill()
        return await self.wait()

    def _command(self, command: bytes) -> None:
        if self._exit is None and not self.handed_over:
            self._link.send_nowait(command)

    async def watch(self) -> None:
        """Notice the end of the process; one task of the block does it at a time."""
        if self._exit is not None:
            return
        report = await self._link.next_report()
        if report is None:
            report = {"status": None, "tail": ["(the supervising process was killed)"]}
            await self._kill_orphans()
        status = report["status"]
        # A child that outlives SIGKILL is one that the kernel holds.
        status = -signal.SIGKILL if status is None else status
        self._exit = ProcessExit(status=status, tail=tuple(report["tail"]))
        self._ended.set()

    async def _kill_orphans(self) -> None:
        """Do what the reaper would have done: its death has killed the child, but none below."""
        _LOGGER.error(
            "somebody killed process %d, which supervised process %d; killing what is left below",
            self._reaper,
            self.pid,
        )
        found = {self.pid}
        with trio.move_on_after(_KILL_BUDGET):
            # Again, until nobody is found: some may have been starting others.
            while alive := await trio.to_thread.run_sync(kill_tree, self.pid, self._token):
                found |= alive
                await trio.sleep(_KILL_INTERVAL)
        collect(found)


@asynccontextmanager
async def open_process(spec: ProcessSpec) -> AsyncGenerator[ManagedProcess]:
    """Run a child process for as long as the block lasts, in a session of its own.

    However we end, SIGKILL included, the child and all its descendants are gone within seconds.
    Leaving the block terminates it, kills what is left after ``spec.stop_budget`` and waits for
    the end, also when the block was cancelled; unless the process was handed over.

    Raises:
        StartupFailed: The program cannot be run.
    """
    token = new_token()
    async with _open_reaper(_environment(spec, token)) as (reaper, link):
        pid = await _start_child(spec, link)
        process = ManagedProcess(pid, reaper, token, link)
        async with _supervised(process, spec.stop_budget):
            yield process


@asynccontextmanager
async def adopt_process(
    handle: ProcessHandle, *, stop_budget: float = 5.0
) -> AsyncGenerator[ManagedProcess]:
    """Supervise a process that another generation of this program has handed over.

    For as long as the block lasts, and with the same guarantees as ``open_process``. The block
    owns the descriptors of *handle*.

    Args:
        handle: What ``hand_over`` returned, with descriptors of this process.
        stop_budget: Seconds from SIGTERM to SIGKILL.
    """
    link = ReaperLink(handle.control, handle.reports, handle.unread)
    process = ManagedProcess(handle.pid, handle.reaper, handle.token, link)
    try:
        async with _supervised(process, stop_budget):
            yield process
    finally:
        link.close_control()
        if not process.handed_over:
            with trio.move_on_after(_KILL_BUDGET, shield=True) as scope:
                await link.wait_gone()
            if scope.cancelled_caught:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(handle.reaper, signal.SIGKILL)
        link.close()


@asynccontextmanager
async def _supervised(process: ManagedProcess, stop_budget: float) -> AsyncGenerator[None]:
    """Watch *process* during the block, and stop it afterwards if it is still ours."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.watch, name=f"process {process.pid}")
            yield
            nursery.cancel_scope.cancel(reason="the process block is over")
    finally:
        if not process.handed_over:
            with trio.move_on_after(stop_budget + _KILL_BUDGET, shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process.watch, name=f"end of process {process.pid}")
                    await process.stop(stop_budget)


@asynccontextmanager
async def _open_reaper(environment: Mapping[str, str]) -> AsyncGenerator[tuple[int, ReaperLink]]:
    """Start the reaper; leaving the block makes it kill everything and waits for it.

    Handed over, it is left alone, not even waited for: it outlives us, who end soon.
    """
    control_read, control_write = os.pipe()
    report_read, report_write = os.pipe()
    link = ReaperLink(control_write, report_read)
    try:
        try:
            # No parent-death signal here: Trio forks in a worker thread, and the signal would
            # be bound to that thread. The pipe does it.
            reaper = await trio.lowlevel.open_process(
                [sys.executable, "-I", "-S", str(_REAPER), str(control_read), str(report_write)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(control_read, report_write),
                start_new_session=True,
                env=environment,
            )
        finally:
            os.close(control_read)
            os.close(report_write)
        try:
            yield reaper.pid, link
        finally:
            link.close_control()
            if not link.paused:
                with trio.move_on_after(_KILL_BUDGET, shield=True) as scope:
                    await reaper.wait()
                if scope.cancelled_caught:
                    reaper.kill()
    finally:
        link.close()


def _environment(spec: ProcessSpec, token: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _OURS_ALONE}
    return {**inherited, **spec.environment, TREE_VARIABLE: token}


async def _start_child(spec: ProcessSpec, link: ReaperLink) -> int:
    request = {
        "argv": list(spec.argv),
        "prefix": spec.prefix,
        "leftovers": list(spec.leftovers),
    }
    await link.send(json.dumps(request).encode())
    report = await link.next_report()
    if report is None:
        raise StartupFailed(f"cannot run {spec.argv[0]}: its supervising process was killed")
    if "error" in report:
        raise StartupFailed(f"cannot run {report['error']}")
    pid: int = report["pid"]
    return pid
