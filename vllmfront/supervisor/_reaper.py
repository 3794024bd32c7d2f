"""The process between us and one child: it makes sure that the child's whole tree dies with us.

Run as ``python -I -S _reaper.py CONTROL_FD REPORT_FD``, standard library only. It adopts
every orphan of the tree (Linux: child subreaper), so that a descendant in a session of its own
cannot slip away, and holds the read end of a pipe whose write end nobody has but its owner, and
those with whom the owner shares it. When that pipe ends, for whatever reason, the tree is killed.

On the control pipe it takes ``{"argv", "prefix", "leftovers"}`` as one line of JSON and, once the
child runs, one line a command: ``T`` sends SIGTERM to the child's group, ``K`` kills the tree,
``L`` and a list of paths replaces the leftovers. When the pipe ends before the child does, the last
owner was killed: the files named as leftovers are removed, too.

On the report pipe it writes one JSON object a line: ``{"pid"}`` once the child runs, ``{"error"}``
when it cannot be started, ``{"status", "tail"}`` when all is over, with the child's exit status,
or minus the signal that killed it, and its last lines of output.
"""

import collections
import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_PROC = pathlib.Path("/proc")

_TAIL_LINES = 40
"""Lines kept for the report: a Python traceback and what led to it."""

_LINE_LIMIT = 8192
"""Bytes; longer lines are forwarded in pieces, so that memory stays bounded."""

_TAIL_LINE_LIMIT = 500
"""Characters of one line that the report repeats."""

_KILL_BUDGET = 3.0
"""Seconds to wait for killed processes; only an uninterruptible one takes longer."""

_DRAIN_BUDGET = 0.5
"""Seconds to read the output that a finished tree left in the pipe."""


class _Output:
    """Forwards a child's output to our stderr, line by line with a prefix, and keeps the tail.

    Carriage returns end lines too: progress bars stay visible, and never overwrite others.
    """

    def __init__(self, fd: int, prefix: bytes) -> None:
        self._fd = fd
        self._prefix = prefix
        self._lock = threading.Lock()
        self._tail: collections.deque[bytes] = collections.deque(maxlen=_TAIL_LINES)
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def tail(self) -> list[str]:
        self._thread.join(_DRAIN_BUDGET)
        with self._lock:
            return [line.decode("utf-8", "replace")[:_TAIL_LINE_LIMIT] for line in self._tail]

    def _pump(self) -> None:
        rest = b""
        while data := os.read(self._fd, 65536):
            *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            if len(rest) > _LINE_LIMIT:
                lines.append(rest)
                rest = b""
            self._forward([line for line in lines if line.strip()])
        self._forward([rest] if rest.strip() else [])

    def _forward(self, lines: list[bytes]) -> None:
        with self._lock:
            self._tail.extend(lines)
        text = memoryview(b"".join(b"%s%s\n" % (self._prefix, line) for line in lines))
        # A stderr that nobody reads any more must not end the child.
        with contextlib.suppress(OSError):
            while text:
                text = text[os.write(2, text) :]


def _set_process_option(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with_reaper(reaper: int) -> None:
    """In the child, before exec: die when the reaper does, too.

    The signal is bound to the reaper's only thread at this moment, its main one.
    """
    _set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != reaper:
        os.kill(os.getpid(), signal.SIGKILL)


def _descendants() -> list[int]:
    """List all living processes below us; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for file in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            # The name in parentheses may hold anything: fields count from its end.
            parent = int(file.read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(file.parent.name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


class _Tree:
    """The child and everything below it."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.status: int | None = None
        """The leader's exit code, or minus its signal; None while it lives."""

    def reap(self) -> bool:
        """Collect the dead; return whether anybody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.leader:
                self.status = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """Kill until nobody is left, or the budget is used up."""
        deadline = time.monotonic() + _KILL_BUDGET
        while self.reap() and time.monotonic() < deadline:
            # The group in one stroke first: its members cannot fork away meanwhile.
            if self.status is None:
                _signal_group(self.leader, signal.SIGKILL)
            for pid in _descendants():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


class _Control:
    """The control pipe, whose lines any of the owners may have written."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """Block for the next bytes; return the lines that end with them, None at the end."""
        data = os.read(self.fd, 65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def _watch(control: _Control, wakeup: int, tree: _Tree, leftovers: list[str]) -> bool:
    """Obey the control pipe until the leader has ended or the tree shall be killed.

    Returns:
        Whether an owner is still there.
    """
    while tree.status is None:
        readable, _, _ = select.select([control.fd, wakeup], [], [])
        if wakeup in readable:
            os.read(wakeup, 512)
            tree.reap()
        if control.fd in readable:
            commands = control.read()
            if commands is None:
                return False
            for command in commands:
                if command == b"K":
                    return True
                if command == b"T" and tree.status is None:
                    _signal_group(tree.leader, signal.SIGTERM)
                if command.startswith(b"L"):
                    leftovers[:] = json.loads(command[1:])
    return True


def _remove(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - plain calls keep this process small


def _report(fd: int, **fields: object) -> None:
    # The owner may be gone already; then there is nobody to tell.
    with contextlib.suppress(OSError):
        os.write(fd, json.dumps(fields).encode() + b"\n")


def main() -> None:
    control, report = _Control(int(sys.argv[1])), int(sys.argv[2])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    while not (lines := control.read()):
        if lines is None:
            return
    request = json.loads(lines[0])
    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)
    output, output_write = os.pipe()
    reaper = os.getpid()
    try:
        child = subprocess.Popen(  # noqa: S603 - running it is the purpose
            request["argv"],
            stdin=subprocess.DEVNULL,
            stdout=output_write,
            stderr=output_write,
            start_new_session=True,
            preexec_fn=lambda: _restore_and_bind(reaper),  # noqa: PLW1509 - no threads yet
        )
    except OSError as exc:
        _report(report, error=f"{request['argv'][0]}: {exc.strerror}")
        return
    os.close(output_write)
    forwarded = _Output(output, request["prefix"].encode())
    tree = _Tree(child.pid)
    _report(report, pid=child.pid)
    leftovers = list(request["leftovers"])
    owner_lives = _watch(control, wakeup, tree, leftovers)
    tree.kill()
    if not owner_lives:
        _remove(leftovers)
    _report(report, status=tree.status, tail=forwarded.tail())
    # Threads and the Popen object have nothing left to do that could block the exit.
    os._exit(0)


def _restore_and_bind(reaper: int) -> None:
    """In the child, before exec: undo our ignored signals and bind its life to ours."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    _die_with_reaper(reaper)


if __name__ == "__main__":
    main()
