"""Listening sockets that outlive the ZeroMQ sockets that serve them."""

import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from vllmfront.engine.transport._addresses import adopted_address, tcp_address
from vllmfront.errors import ConfigurationError

_BACKLOG = 1024
"""Engines that may wait while nobody serves the socket; each has one connection."""


class SharedListener:
    """Where engines connect, whoever serves it: each server gets a duplicate of the descriptor.

    Peers that connect while none does wait in the kernel's queue. Nobody may ``shutdown`` it: that
    would end it for all who hold it. Closed by leaving its ``with`` block.
    """

    def __init__(self, fd: int, *, owns_file: bool = True) -> None:
        """Take over *fd*.

        Args:
            fd: A listening descriptor.
            owns_file: Whether the path of a Unix socket is removed at the end.

        Raises:
            ConfigurationError: It is no listening socket.
        """
        self.address = adopted_address(fd)
        """As ZeroMQ writes it, with the port that the kernel chose."""

        self.owns_file = owns_file
        self._fd = fd

    def __repr__(self) -> str:
        return f"<SharedListener {self.address} {'closed' if self._fd < 0 else f'fd={self._fd}'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def duplicate(self) -> int:
        """Return another descriptor of the same socket, for a server that will close it."""
        return os.dup(self._fd)

    def close(self) -> None:
        """Give up our hold; the last one to do so refuses those that wait."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if self.owns_file and self.address.startswith("ipc://"):
            Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)


def listen_tcp(host: str, port: int) -> SharedListener:
    """Listen at a numeric *host*; port 0 lets the kernel choose.

    Raises:
        ConfigurationError: The address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return _listen(family, (host, port), tcp_address(host, port))


def listen_ipc(address: str) -> SharedListener:
    """Listen at a fresh ``ipc://`` *address*.

    Raises:
        ConfigurationError: The address cannot be bound.
    """
    return _listen(socket.AF_UNIX, address.removeprefix("ipc://"), address)


def _listen(family: int, name: str | tuple[str, int], address: str) -> SharedListener:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            # Not refused while connections of an earlier process linger.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(name)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        message = f"cannot listen for engines at {address}: {error.strerror}"
        raise ConfigurationError(message) from error
    return SharedListener(listener.detach())
