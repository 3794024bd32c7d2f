"""Listening sockets that this process was started with: of anybody, or of systemd."""

import contextlib
import os
import socket as stdlib_socket
from collections.abc import Mapping, MutableMapping

from vllmfront.api.http._listener import Listener
from vllmfront.errors import ConfigurationError

_FIRST_SYSTEMD_DESCRIPTOR = 3


def adopt_all(names: Mapping[int, str]) -> list[Listener]:
    """Adopt all of these descriptors, or none."""
    with contextlib.ExitStack() as stack:
        listeners = []
        for fd, name in names.items():
            listeners.append(adopt_listener(fd, name))
            stack.callback(listeners[-1].close)
        stack.pop_all()
        return listeners


def adopt_listener(fd: int, name: str) -> Listener:
    """Take over an inherited listening socket; it is closed with the listener.

    Raises:
        ConfigurationError: The descriptor is not a listening stream socket.
    """
    try:
        sock = stdlib_socket.socket(fileno=fd)
    except OSError as error:
        message = f"cannot listen on descriptor {fd}: {error.strerror}"
        raise ConfigurationError(message) from error
    listening = sock.type == stdlib_socket.SOCK_STREAM and sock.getsockopt(
        stdlib_socket.SOL_SOCKET, stdlib_socket.SO_ACCEPTCONN
    )
    if not listening:
        sock.detach()
        raise ConfigurationError(f"descriptor {fd} is not a listening stream socket")
    sock.set_inheritable(False)
    sock.settimeout(0)
    return Listener(sock, name)


def adopt_from_systemd(name: str | None, environ: MutableMapping[str, str]) -> list[Listener]:
    descriptors = take_systemd_descriptors(environ)
    chosen = {fd: f"systemd fd {fd}" for fd, label in descriptors if name in {None, label}}
    if not chosen:
        wanted = "sockets" if name is None else f"a socket named {name!r}"
        raise ConfigurationError(f"the service manager has not passed {wanted} (LISTEN_FDS)")
    return adopt_all(chosen)


def take_systemd_descriptors(environ: MutableMapping[str, str]) -> list[tuple[int, str]]:
    """Return the descriptors and names that systemd passed to this very process.

    They are made close-on-exec and the variables are removed, so that no child takes them for
    its own.

    Raises:
        ConfigurationError: One of them is not open.
    """
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    labels = names.split(":") if names else []
    found = []
    for index in range(int(count)):
        fd = _FIRST_SYSTEMD_DESCRIPTOR + index
        try:
            os.set_inheritable(fd, False)  # noqa: FBT003  # takes no keywords
        except OSError as error:
            message = f"LISTEN_FDS counts descriptor {fd}, which is not open"
            raise ConfigurationError(message) from error
        found.append((fd, labels[index] if index < len(labels) else "unknown"))
    return found
