"""Ports that stay free while nobody listens on them, so that a later process finds them so."""

import contextlib
import random
from pathlib import Path

from vllmfront.engine.transport._addresses import host_of
from vllmfront.engine.transport._listener import SharedListener, listen_tcp
from vllmfront.errors import ConfigurationError

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_RANGE = (32768, 60999)
_FIRST = 10000
"""Below it are the ports of well-known services."""

_LAST = 65535
_TRIES = 100


def listen_lasting(host: str) -> SharedListener:
    """Listen at a numeric *host*, on a port that the kernel gives to nobody by itself.

    A port of the range for outgoing connections may be taken, once we do not listen, by any
    program that connects to anything; even by an engine that tries to reconnect to us, which then
    is connected to itself.

    Raises:
        ConfigurationError: The host cannot be bound.
    """
    low, high = _ephemeral_range()
    ports = [*range(_FIRST, low), *range(max(high, _FIRST - 1) + 1, _LAST + 1)]
    # Randomness needs no secrecy here: it keeps servers on one host out of each other's way.
    for port in random.sample(ports, min(_TRIES, len(ports))):
        try:
            return listen_tcp(host, port)
        except ConfigurationError:
            continue
    return listen_tcp(host, 0)


def choose_ports(host: str, count: int) -> list[int]:
    """Return ports at a numeric *host* that are free now, for others to listen on soon.

    Nobody gets them by chance: the kernel gives them to none by itself.

    Raises:
        ConfigurationError: The host cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listen_lasting(host)) for _ in range(count)]
        return [host_of(listener.address)[1] for listener in listeners]


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = map(int, _RANGE_FILE.read_text().split())
    except (OSError, ValueError):
        return _USUAL_RANGE
    return low, high
