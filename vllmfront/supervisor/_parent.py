"""The process that started us, and its end."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from vllmfront.errors import ConfigurationError

_LOGGER = logging.getLogger(__name__)

_LOOK_INTERVAL = 1.0
"""Seconds between two looks at who our parent is, where the kernel cannot tell us of its end."""


class Parent:
    """Who started this process; opened by ``open_parent``."""

    def __init__(self, pid: int, descriptor: int | None) -> None:
        self.pid = pid
        self._descriptor = descriptor

    def __repr__(self) -> str:
        return f"<Parent pid={self.pid}>"

    async def wait_end(self) -> None:
        """Return once it has ended, whether or not anybody has waited for it."""
        if self._descriptor is not None:
            await trio.lowlevel.wait_readable(self._descriptor)
            return
        while os.getppid() == self.pid:  # noqa: ASYNC110 (there is no event)
            await trio.sleep(_LOOK_INTERVAL)


@contextmanager
def open_parent() -> Iterator[Parent]:
    """Keep an eye on the process that started us for the block.

    Open it early: a parent that has ended before cannot be told from whoever is in its place.

    Raises:
        ConfigurationError: It ended meanwhile.
    """
    pid = os.getppid()
    descriptor = _open_descriptor(pid)
    try:
        if os.getppid() != pid:  # the descriptor may be that of another process
            raise ConfigurationError(f"process {pid}, which has started this one, is gone")
        yield Parent(pid, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_descriptor(pid: int) -> int | None:
    """Return what becomes readable when the process ends; None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except AttributeError:  # no Linux
        return None
    except OSError as error:
        if error.errno == errno.ESRCH:
            return None  # gone, as the caller will find
        _LOGGER.warning(
            "the kernel does not tell of the end of process %d (%s): looking every %g s instead",
            pid,
            error.strerror,
            _LOOK_INTERVAL,
        )
        return None
