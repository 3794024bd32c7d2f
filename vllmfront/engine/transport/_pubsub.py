"""Publishing to whoever has subscribed, and subscribing; both ways talk back."""

import zmq

from vllmfront.engine.transport._sockets import TwoWaySocket, bind

_KEEPALIVE_IDLE, _KEEPALIVE_INTERVAL, _KEEPALIVE_COUNT = 5, 2, 3
"""Seconds of silence until the kernel asks, seconds between questions, and how many go without an
answer: a host that vanished is given up after about ten seconds."""


class MessagePublisher(TwoWaySocket):
    """A bound XPUB.

    Whoever has subscribed gets what is sent; those that come later miss it. What is received are
    subscriptions, each one, and what subscribers say.
    """

    def admit(self) -> None:
        """Let whoever sent the subscription that was received last get what is sent from now on.

        For publishers that were opened *by_hand*.
        """
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")


class MessageSubscriber(TwoWaySocket):
    """A connected XSUB; it reconnects, and subscribes again, by itself."""


def open_publisher(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    *,
    adopt_fd: int | None = None,
    by_hand: bool = False,
) -> MessagePublisher:
    """Bind an XPUB that reports each subscription, and each end of one.

    Args:
        context: Whose I/O threads serve it.
        address: Where to bind; empty together with *adopt_fd*.
        adopt_fd: A listening descriptor to serve instead; the socket owns it from now on.
        by_hand: Whether subscribers get nothing before ``admit``, so that we know what they get
            first. They cannot say anything else then.

    Raises:
        OSError: The address cannot be bound.
        ConfigurationError: *adopt_fd* is no listening socket.
    """
    socket = context.socket(zmq.XPUB)
    # Not only the first of equal subscriptions, and not only the last end of them.
    socket.setsockopt(zmq.XPUB_VERBOSER, 1)
    if by_hand:
        socket.setsockopt(zmq.XPUB_MANUAL, 1)
    _keep_alive(socket)
    return MessagePublisher(socket, unlink=bind(socket, address, adopt_fd))


def open_subscriber(
    context: zmq.Context[zmq.Socket[bytes]], address: str, *, identity: bytes | None = None
) -> MessageSubscriber:
    """Connect an XSUB to a publisher, which may come later; it has not subscribed yet.

    Raises:
        zmq.ZMQError: *address* is none.
    """
    socket = context.socket(zmq.XSUB)
    try:
        if identity is not None:
            socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        _keep_alive(socket)
        if "[" in address:
            socket.setsockopt(zmq.IPV6, 1)
        socket.connect(address)
    except BaseException:
        socket.close(linger=0)
        raise
    return MessageSubscriber(socket)


def _keep_alive(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_INTERVAL)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_COUNT)
