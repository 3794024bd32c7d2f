"""A socket that connects to a ROUTER under a name."""

import zmq

from vllmfront.engine.transport._sockets import TwoWaySocket


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]], address: str, *, identity: bytes
) -> TwoWaySocket:
    """Connect a DEALER, which reconnects by itself; what is sent meanwhile waits for that.

    Raises:
        zmq.ZMQError: *address* is none.
    """
    socket = context.socket(zmq.DEALER)
    try:
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.LINGER, 0)
        # The newest word counts: an old one that waits for a connection would only be out of date.
        socket.setsockopt(zmq.SNDHWM, 1)
        if "[" in address:
            socket.setsockopt(zmq.IPV6, 1)
        socket.connect(address)
    except BaseException:
        socket.close(linger=0)
        raise
    return TwoWaySocket(socket)
