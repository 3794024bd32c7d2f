"""Noticing peers on other hosts that vanish without a word: a host is off, or a cable is cut.

Nothing closes their connections then. ZeroMQ's own threads ask each peer in turn whether it is
there, and its threads answer, however busy either process is; nobody has to configure that there.
"""

from ipaddress import ip_address

import zmq

INTERVAL = 2.0
"""Seconds between two questions."""

TIMEOUT = 6.0
"""Seconds without any word after a question, until a connection counts as broken: with the interval
before it, a peer that vanishes is noticed within eight. Peers hear of it, and count alike: one that
has nothing to say would not notice otherwise, and not come back when it could."""

_MILLISECONDS = 1000


def watch_peers(socket: zmq.Socket[bytes], address: str) -> None:
    """Have *socket*, which is about to be bound to *address*, close connections that are dead.

    On one host the kernel tells, and a process that was stopped for a while is not gone.
    """
    if not address.startswith("tcp://"):
        return
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if ip_address(host).is_loopback:
        return
    timeout = int(TIMEOUT * _MILLISECONDS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(INTERVAL * _MILLISECONDS))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, timeout)
    socket.setsockopt(zmq.HEARTBEAT_TTL, timeout)
