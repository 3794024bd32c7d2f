"""The file in which a frontend leaves its engines to the next, and the lock on it."""

import fcntl
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from vllmfront.engine.client.entrance._saved import (
    SavedState,
    UnusableState,
    decode_state,
    encode_state,
)
from vllmfront.errors import ConfigurationError

_LOGGER = logging.getLogger(__name__)

_MAX_BYTES = 64 * 2**20
"""Far above what thousands of engines have to say about themselves."""

_NO_FILE = -1


class StateFile:
    """One file, which one process at a time may write. Closed by leaving its ``with`` block.

    It stays when the process ends: that is what it is for.
    """

    def __init__(self, path: Path) -> None:
        """Name the file, which nobody touches yet."""
        self.path = path
        self._lock = _NO_FILE

    def __repr__(self) -> str:
        return f"<StateFile {self.path}{' held' if self._lock != _NO_FILE else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Keep other processes out until ``release``, or until this one ends; may be repeated.

        The lock is on a file of its own: the other one is replaced whenever it is written.

        Raises:
            ConfigurationError: Another process holds it, or its folder cannot be written to.
        """
        if self._lock != _NO_FILE:
            return
        path = self.path.with_suffix(".lock")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to {path.parent}, where engines are kept for the next start: "
                f"{error.strerror}; name another folder with --state-dir"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise ConfigurationError(
                f"process {holder or 'of another user'} serves the engines of {self.path}; stop "
                "it, or give this one another --data-parallel-rpc-port or --state-dir"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        self._lock = lock

    def release(self) -> None:
        """Let others write the file; may be repeated."""
        if self._lock != _NO_FILE:
            os.close(self._lock)
            self._lock = _NO_FILE

    def read(self, handshake_address: str) -> SavedState | None:
        """Return what another process has left; None, and a line in the log, if that is no use.

        Args:
            handshake_address: Where engines find us; those that were told another one cannot.
        """
        try:
            with self.path.open("rb") as file:
                data = file.read(_MAX_BYTES)
            return decode_state(data, handshake_address)
        except FileNotFoundError:
            return None
        except (UnusableState, OSError) as error:
            _LOGGER.warning(
                "Starting without %s: %s. Engines that run have to be restarted to be found",
                self.path,
                error,
            )
            return None

    def write(self, state: SavedState) -> None:
        """Replace the content, as a whole or not at all; a failure costs a line in the log.

        It is not forced to the disk: what it tells of survives a kill of this process, which
        cannot lose it, and not a loss of power.
        """
        assert self._lock != _NO_FILE, "whoever writes holds the lock"
        fresh = self.path.with_suffix(".new")
        try:
            fresh.write_bytes(encode_state(state))
            fresh.replace(self.path)
        except OSError as error:
            _LOGGER.error(  # noqa: TRY400 - no bug of ours
                "Cannot write %s: %s. A frontend that is started after this one will not find "
                "the engines",
                self.path,
                error.strerror,
            )
