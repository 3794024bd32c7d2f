"""The engine's ends of the boundary: sockets that connect."""

from collections.abc import Sequence

import zmq

from vllmfront.engine.transport import TwoWaySocket

DEATH_LINGER_MS = 4000
"""How long a closed output socket may still try to deliver: the news of a death must arrive."""

HANDSHAKE_LINGER_MS = 5000
"""How long the last word of the start-up may still try to arrive."""

Context = zmq.Context[zmq.Socket[bytes]]


class Dealer(TwoWaySocket):
    """A connected DEALER."""

    def send(self, payload: bytes) -> None:
        """Queue one message of one frame."""
        self.send_frames([payload])


class Pusher:
    """A connected PUSH: queues without limit, as an engine's does."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def send(self, frames: Sequence[bytes]) -> None:
        self._socket.send_multipart(frames, zmq.DONTWAIT)

    def linger(self, milliseconds: int) -> None:
        """Give what is queued so long to leave after the socket is closed."""
        self._socket.setsockopt(zmq.LINGER, milliseconds)

    def close(self) -> None:
        self._socket.close()


def connect_dealer(context: Context, address: str, rank: int, *, linger: int = 0) -> Dealer:
    """Connect to a ROUTER under the identity of *rank*; *linger* in milliseconds."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, rank.to_bytes(2, "little"))
    return Dealer(_connect(socket, address), linger=linger)


def connect_pusher(context: Context, address: str) -> Pusher:
    """Connect to a PULL."""
    return Pusher(_connect(context.socket(zmq.PUSH), address))


def _connect(socket: zmq.Socket[bytes], address: str) -> zmq.Socket[bytes]:
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        if "[" in address:
            socket.setsockopt(zmq.IPV6, 1)
        socket.connect(address)
    except BaseException:
        socket.close(linger=0)
        raise
    return socket
