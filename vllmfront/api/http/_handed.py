"""Connections that another process of this server has accepted, as a listener like any other."""

import errno
import socket as stdlib_socket
from collections.abc import Callable

import attrs
import trio

from vllmfront.api.http._listener import Listener
from vllmfront.interprocess import take


@attrs.define(eq=False)
class HandedListener(Listener):
    """The end of a pair where accepted connections are taken out; its socket is not connected to.

    It ends when the other process hangs up.
    """

    on_taken: Callable[[], None] = lambda: None
    """Called for each connection."""

    def duplicate(self) -> Listener:
        """Return the same end for a child: what it does not take waits for the next one."""
        return HandedListener(self.socket.dup(), self.name, on_taken=self.on_taken)

    def accept(self) -> tuple[stdlib_socket.socket, object]:
        """Return the next connection and its client's address.

        Raises:
            BlockingIOError: None waits.
            OSError: Its client has left.
            trio.ClosedResourceError: There will not be another.
        """
        connection = take(self.socket)
        if connection is None:
            raise trio.ClosedResourceError
        self.on_taken()
        try:
            return connection, connection.getpeername()
        except OSError as error:
            connection.close()
            raise OSError(errno.ECONNABORTED, "the client has left") from error
