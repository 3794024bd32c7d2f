"""Accepted connections, handed from the process that accepts to the one that serves."""

import array
import os
import socket

_ITEM_BYTES = array.array("i").itemsize

_BUFFER_BYTES = 4 * 2**20
"""Of the pair: room for some thousands of connections that nobody has taken yet."""


def handing_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends: what is handed in at the first is taken out of the second, in order."""
    giving, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in (giving, taking):
        each.settimeout(0)
    giving.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return giving, taking


def hand(giving: socket.socket, connection: socket.socket) -> None:
    """Hand over a duplicate of *connection*; the caller closes its own.

    Raises:
        BlockingIOError: Too many wait to be taken.
        OSError: The other end is gone.
    """
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))
    giving.sendmsg([b"c"], [rights])


def take(taking: socket.socket) -> socket.socket | None:
    """Return the next connection; None: there will not be another.

    Raises:
        BlockingIOError: None waits.
    """
    while True:
        data, ancillary, _, _ = taking.recvmsg(
            1, socket.CMSG_SPACE(_ITEM_BYTES), socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return None
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                [descriptor] = array.array("i", content[:_ITEM_BYTES])
                return _adopt(descriptor)
        # The kernel had no descriptor left for us: that connection is lost, the next may not be.


def _adopt(descriptor: int) -> socket.socket:
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
