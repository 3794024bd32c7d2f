"""One socket that clients connect to."""

import contextlib
import os
import socket as stdlib_socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

_KEEP_ALIVE_PROBES = (
    (stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE, 1),
    (stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_KEEPIDLE, 60),
    (stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_KEEPINTVL, 15),
    (stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_KEEPCNT, 4),
)
"""Makes a client's vanishing without a word known after two minutes, also while we compute."""


@attrs.define(eq=False)
class Listener:
    """A listening socket and what must be cleaned up after it."""

    socket: stdlib_socket.socket
    name: str
    unlink: tuple[str, int, int] | None = None
    """A Unix socket's path, and the device and inode that make it ours."""

    def duplicate(self) -> "Listener":
        """Return the same socket for a child: one that closes it leaves ours, and any file, alone.

        Connections that arrive while no child accepts wait for the next one.
        """
        return Listener(self.socket.dup(), self.name)

    def probe_clients(self) -> None:
        """Let the kernel find out about clients that have vanished; connections inherit it."""
        if self.socket.family != stdlib_socket.AF_UNIX:
            for option in _KEEP_ALIVE_PROBES:
                self.socket.setsockopt(*option)

    def accept(self) -> tuple[stdlib_socket.socket, object]:
        """Return the next connection and its client's address.

        Raises:
            BlockingIOError: None waits.
            OSError: It cannot be had.
        """
        return self.socket.accept()

    def close(self) -> None:
        """Stop listening, waking whoever waits; may be called again."""
        if self.socket.fileno() < 0:
            return
        with contextlib.suppress(RuntimeError):  # outside of Trio nobody waits
            trio.lowlevel.notify_closing(self.socket)
        self.socket.close()
        if self.unlink is not None:
            unlink_own(*self.unlink)


@contextmanager
def duplicate_listeners(listeners: Sequence[Listener]) -> Iterator[list[Listener]]:
    """Lend the sockets to a child for as long as the block runs; it may close them earlier."""
    with contextlib.ExitStack() as stack:
        copies = []
        for listener in listeners:
            copies.append(listener.duplicate())
            stack.callback(copies[-1].close)
        yield copies


def unlink_own(path: str, device: int, inode: int) -> None:
    """Remove the socket file at *path*, unless it is another one by now."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if (status.st_dev, status.st_ino) == (device, inode):
            Path(path).unlink()
