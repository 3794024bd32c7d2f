"""Inherited descriptors: are they what the supervisor says they are?"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from vllmfront.api.http import Listener, adopt_listener
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles.worker._config import Bootstrap

_BACKLOG = 2048
"""Connections of clients that may wait to be accepted, as the reference."""

_FAMILIES = {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX}


def check_descriptors(bootstrap: Bootstrap) -> None:
    """Make sure that all inherited descriptors are as expected, and that no child inherits them.

    Raises:
        ConfigurationError: One is not, or stands for two; option and descriptor are named.
    """
    named = {
        "--listen-fd": bootstrap.listen_fd,
        "--input-listener-fd": bootstrap.input_fd,
        "--output-listener-fd": bootstrap.output_fd,
    }
    if len(set(named.values())) < len(named):
        shown = ", ".join(f"{option} {fd}" for option, fd in named.items())
        raise ConfigurationError(f"{shown}: each needs a descriptor of its own")
    for option, fd in named.items():
        _check(fd, option, must_listen=option != "--listen-fd")
        os.set_inheritable(fd, False)  # noqa: FBT003 - it takes no keywords


@contextmanager
def open_client_listener(fd: int) -> Iterator[Listener]:
    """Listen for clients on the bound socket *fd* for the block.

    The file of a Unix socket stays: it is the supervisor's.

    Raises:
        ConfigurationError: The address is in use, for example.
    """
    with socket.socket(fileno=os.dup(fd)) as bound:
        try:
            bound.listen(_BACKLOG)
        except OSError as error:
            message = f"--listen-fd {fd}: cannot listen there: {error.strerror}"
            raise ConfigurationError(message) from error
        name = bound.getsockname()
    listener = adopt_listener(fd, f"unix:{name}" if isinstance(name, str) else f"fd {fd}")
    try:
        yield listener
    finally:
        listener.close()


def _check(fd: int, option: str, *, must_listen: bool) -> None:
    try:
        mode = os.fstat(fd).st_mode
    except OSError as error:
        raise ConfigurationError(
            f"{option} {fd}: {error.strerror}; whoever starts this process has to pass it on"
        ) from error
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{option} {fd} is no socket")
    # A duplicate, so that looking at it does not make it ours.
    with socket.socket(fileno=os.dup(fd)) as found:
        if found.family not in _FAMILIES or found.type != socket.SOCK_STREAM:
            raise ConfigurationError(
                f"{option} {fd} is no stream socket for TCP or of the Unix kind "
                f"({found.family!s}, {found.type!s})"
            )
        name = found.getsockname()
        bound = bool(name) if isinstance(name, str) else bool(name[1])
        if not bound:
            raise ConfigurationError(f"{option} {fd} is bound to no address")
        if must_listen and not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigurationError(f"{option} {fd} does not listen: engines could not connect")
