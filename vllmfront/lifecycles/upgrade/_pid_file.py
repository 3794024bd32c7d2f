"""The file that says which process serves, locked for as long as it does.

The lock tells a process that serves from one that was killed: a number alone may belong to
anybody by now, and a signal that it does not expect would end it.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from vllmfront.errors import ConfigurationError


class PidFile:
    """Our entry in a pid file."""

    def __init__(self, path: Path) -> None:
        """Name the file, which nobody touches yet; its path should be absolute."""
        self.path = path
        self._file = -1

    def write(self) -> None:
        """Put our process id there, in place of another generation's.

        Raises:
            ConfigurationError: The file cannot be written.
        """
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            # Nobody else knows this file yet, so the lock is free.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, b"%d\n" % os.getpid())
            fresh.replace(self.path)
        except OSError as error:
            message = f"cannot write the pid file {self.path}: {error.strerror}"
            raise ConfigurationError(message) from error
        self._close()
        self._file = file

    def is_replaced(self) -> bool:
        """Whether our entry is there no more: another generation has put its own in its place."""
        if self._file < 0:
            return False
        try:
            own, there = os.fstat(self._file), self.path.stat()
        except OSError:
            return True
        return (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino)

    def remove(self) -> None:
        """Remove the file, unless another generation has replaced it; may be called again."""
        if self._file < 0:
            return
        if not self.is_replaced():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def check_free(path: Path) -> None:
    """Make sure that a pid file can be written at *path*, and that no living process has it.

    Raises:
        ConfigurationError: One has, or the path is unusable.
    """
    pid = read_pid(path)
    if pid is not None:
        raise ConfigurationError(f"process {pid} is serving with the pid file {path}")
    if path.is_dir():
        raise ConfigurationError(f"cannot write the pid file {path}: it is a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"cannot write the pid file {path}: its folder is missing, or not ours to write to"
        )


def read_pid(path: Path) -> int | None:
    """Return which process serves, by the pid file at *path*; None: none does.

    Raises:
        ConfigurationError: The file cannot be read, or is something else.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read the pid file {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(file, 32)
            if not text.strip().isdigit():
                raise ConfigurationError(f"{path} is no pid file of ours") from None
            return int(text)
        return None
    finally:
        os.close(file)
