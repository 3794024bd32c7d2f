"""Our ends of a reaper's pipes, which generations of the program may share."""

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Any

import trio

_PROC = Path("/proc")

_TOKEN_BYTES = 8

TREE_VARIABLE = "VLLMFRONT_PROCESS_TREE"
"""In the environment of everything below a reaper; tells whose it is when the reaper is gone."""


def new_token() -> str:
    """Make the name of a process tree."""
    return secrets.token_hex(_TOKEN_BYTES)


class ReaperLink:
    """The write end of a reaper's control pipe and the read end of its report pipe.

    The tree lives as long as any process has the control pipe open. Commands of several holders
    do not mix, since each is written in one piece; only one of them may read reports at a time.
    The descriptors never block, and children do not inherit them by accident. How they are
    set is shared by all holders and outlives each of them.
    """

    def __init__(self, control: int, reports: int, unread: str = "") -> None:
        """Take ownership of both descriptors.

        Args:
            control: The write end of the control pipe.
            reports: The read end of the report pipe.
            unread: What the holder before us read of a report that it did not see the end of.
        """
        self._control = control
        self._reports = reports
        self._unread = unread.encode("ascii")
        self._reading = trio.Event()
        self._reading.set()
        self._closed = False
        for fd in self.descriptors:
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)  # noqa: FBT003 - takes no keywords

    @property
    def descriptors(self) -> tuple[int, int]:
        """Control and reports: what another holder needs."""
        return self._control, self._reports

    @property
    def unread(self) -> str:
        """The beginning of a report whose end has not come yet."""
        return self._unread.decode("ascii")

    async def send(self, line: bytes) -> None:
        """Write *line*, however long; what is left is dropped when the reaper is gone.

        Cancelled, it may have written a part: the link is then good for closing only.
        """
        rest = memoryview(line + b"\n")
        while rest:
            try:
                rest = rest[os.write(self._control, rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._control)
            except BrokenPipeError:
                return

    def send_nowait(self, command: bytes) -> None:
        """Write a short line; nothing when the reaper is gone, or reads no more."""
        if not self._closed:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(self._control, command + b"\n")

    @property
    def paused(self) -> bool:
        """Whether reports are left to somebody else."""
        return not self._reading.is_set()

    def pause(self) -> None:
        """Take nothing more out of the report pipe from this moment on."""
        self._reading = trio.Event()

    def resume(self) -> None:
        """Read reports again."""
        self._reading.set()

    async def next_report(self) -> dict[str, Any] | None:
        """Return the next report; None when the reaper is gone. Cancelled, it loses none."""
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                report: dict[str, Any] = json.loads(line)
                return report
            await trio.lowlevel.wait_readable(self._reports)
            if self.paused:
                # The wait had ended when somebody else took over: what came is theirs.
                await self._reading.wait()
                continue
            try:
                data = os.read(self._reports, 65536)
            except BlockingIOError:
                continue
            if not data:
                return None
            self._unread += data

    async def wait_gone(self) -> None:
        """Wait until the reaper has ended, dropping what it still says."""
        while await self.next_report() is not None:
            pass

    def close_control(self) -> None:
        """Let go of the tree: without another holder it is killed. May be called again."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._control)
            os.close(self._control)

    def close(self) -> None:
        """Close both ends; call it once."""
        self.close_control()
        trio.lowlevel.notify_closing(self._reports)
        os.close(self._reports)


def kill_tree(leader: int, token: str) -> set[int]:
    """Kill what a reaper that is gone has left; return the ids of those that were still alive.

    Found by the leader's session and by the tree's token in their environment: a process that
    has given itself a title has lost the token, one that opened a session of its own the leader's.
    Reads ``/proc``, which takes milliseconds; empty where there is none.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    mark = f"{TREE_VARIABLE}={token}".encode()
    killed = set()
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            # The name in parentheses may hold anything: fields count from its end.
            state, _, _, session = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            ours = int(session) == leader or mark in (entry / "environ").read_bytes().split(b"\0")
            if ours and state != b"Z":
                os.kill(int(entry.name), signal.SIGKILL)
                killed.add(int(entry.name))
    return killed


def collect(pids: Collection[int]) -> None:
    """Collect those of the dead that have become children of ours.

    Orphans do where we are the first process of a container.
    """
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
