"""Addresses as ZeroMQ writes them."""

import os
import secrets
import socket
import tempfile
from pathlib import Path

import trio

from vllmfront.errors import ConfigurationError

MAX_IPC_PATH_BYTES = 107
"""What a Unix socket name may take, without its closing NUL."""


async def resolve_host(host: str) -> str:
    """Return a numeric form of *host*; ZeroMQ binds to nothing else.

    Raises:
        ConfigurationError: The name has no address.
    """
    try:
        found = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(f"cannot resolve the host {host!r}: {error}") from error
    return str(found[0][4][0])


def address_towards(host: str) -> str:
    """Return the numeric address of ours that a numeric *host* sees when we connect to it.

    Raises:
        ConfigurationError: There is no way there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing
        except OSError as error:
            raise ConfigurationError(f"there is no way to {host}: {error.strerror}") from error
        return str(probe.getsockname()[0])


def tcp_address(host: str, port: int) -> str:
    """Return the address of a numeric or named *host*; port 0 lets the kernel choose."""
    shown = f"[{host}]" if ":" in host else host
    return f"tcp://{shown}:{port or '*'}"


def host_of(address: str) -> tuple[str, int]:
    """Return host and port of a bound ``tcp://`` *address*."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)


def ipc_address(purpose: str) -> str:
    """Return a fresh ``ipc://`` address in ``VLLM_RPC_BASE_PATH`` or the temporary folder.

    Raises:
        ConfigurationError: That folder's name is too long for a Unix socket.
    """
    folder = os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir()
    path = Path(folder) / f"vllmfront-{purpose}-{secrets.token_hex(8)}"
    if len(os.fsencode(path)) > MAX_IPC_PATH_BYTES:
        raise ConfigurationError(
            f"the socket path {str(path)!r} is longer than {MAX_IPC_PATH_BYTES} bytes; "
            "set VLLM_RPC_BASE_PATH to a shorter folder"
        )
    return f"ipc://{path}"


def adopted_address(fd: int) -> str:
    """Return the address of the listening socket behind *fd*, which stays open.

    Raises:
        ConfigurationError: *fd* is not a socket of a kind that ZeroMQ can serve.
    """
    try:
        with socket.socket(fileno=os.dup(fd)) as listener:
            family, name = listener.family, listener.getsockname()
    except OSError as error:
        raise ConfigurationError(f"descriptor {fd} is not a listening socket: {error}") from error
    if family == socket.AF_UNIX and isinstance(name, str) and name:
        return f"ipc://{name}"
    if family in {socket.AF_INET, socket.AF_INET6}:
        return tcp_address(name[0], name[1])
    raise ConfigurationError(f"descriptor {fd} is a socket of an unknown kind")
