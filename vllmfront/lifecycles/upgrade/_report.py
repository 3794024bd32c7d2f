"""How an upgrade goes, told by the process that does it to the one that asked for it.

``vllmfront reload`` listens on a socket beside the pid file, and whoever serves sends there what
it does. A signal alone could tell nobody why nothing came of it.
"""

import contextlib
import enum
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from vllmfront.errors import ConfigurationError

_SUFFIX = ".reload"
_MAX_BYTES = 65536


class Stage(enum.StrEnum):
    """How far an upgrade has come; the last two are final."""

    UNDER_WAY = "under way"
    DONE = "done"
    FAILED = "failed"


@attrs.frozen
class Report:
    """One thing that was said about an upgrade."""

    stage: Stage
    text: str


class Reporter:
    """Tells whoever listens beside a pid file; nobody need."""

    def __init__(self, pid_file: Path | None) -> None:
        self._path = None if pid_file is None else _beside(pid_file)
        self.listener = self._identify()
        """The one who asked: who comes later is told nothing of what somebody else asked for."""

    def tell(self, stage: Stage, text: str) -> None:
        """Say how far the upgrade is, if anybody wants to know."""
        if self._path is None or self.listener is None or self._identify() != self.listener:
            return
        data = json.dumps({"stage": stage, "text": text}).encode()[:_MAX_BYTES]
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.setblocking(False)  # noqa: FBT003 - takes no keyword
            with _short_name(self._path) as name:
                sender.sendto(data, name)

    def _identify(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


class Reports:
    """What is told beside a pid file; opened by ``open_reports``."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = trio.socket.from_stdlib_socket(sock)

    async def receive(self) -> Report:
        """Return what is said next."""
        while True:
            data = await self._socket.recv(_MAX_BYTES)
            with contextlib.suppress(ValueError, KeyError, TypeError):
                fields = json.loads(data)
                return Report(Stage(fields["stage"]), str(fields["text"]))


@contextmanager
def open_reports(pid_file: Path) -> Iterator[Reports]:
    """Listen for the block; only one can at a time.

    Raises:
        ConfigurationError: Somebody else listens, or the folder takes no socket.
    """
    path = _beside(pid_file)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        try:
            with _short_name(path) as name:
                if _is_heard(name):
                    raise ConfigurationError(f"another reload with {pid_file} is under way")
                path.unlink(missing_ok=True)
                listener.bind(name)
            listener.setblocking(False)  # noqa: FBT003 - takes no keyword
        except OSError as error:
            message = f"cannot listen for the outcome at {path}: {error.strerror}"
            raise ConfigurationError(message) from error
        try:
            yield Reports(listener)
        finally:
            path.unlink(missing_ok=True)


def _beside(pid_file: Path) -> Path:
    return pid_file.with_name(pid_file.name + _SUFFIX)


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Name *path* in the few bytes that the name of a socket may have."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _is_heard(name: str) -> bool:
    """Tell whether somebody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(name)
        except OSError:
            return False
    return True
