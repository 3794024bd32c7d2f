"""Sockets that clients connect to: TCP, Unix, inherited, or handed over by systemd."""

import errno
import os
import socket as stdlib_socket
import stat
from collections.abc import AsyncGenerator, MutableMapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
from attrs import validators

from vllmfront.api.http._inherited import adopt_all, adopt_from_systemd
from vllmfront.api.http._listener import Listener, unlink_own
from vllmfront.errors import ConfigurationError


@attrs.frozen(kw_only=True)
class ListenConfig:
    """Where to listen: exactly one of a host, a Unix socket, descriptors, or systemd."""

    host: str = "127.0.0.1"
    """A name or an address; the empty string listens on all addresses."""

    port: int = attrs.field(default=8000, validator=[validators.ge(0), validators.le(65535)])
    """0 lets the kernel choose."""

    uds: str | None = None
    """Path of a Unix socket, instead of host and port."""

    fds: Sequence[int] = ()
    """Inherited listening descriptors, instead of host and port."""

    systemd: bool = False
    """Take what the service manager has opened, instead of host and port."""

    systemd_name: str | None = None
    """Of those, only the sockets with this ``FileDescriptorName``."""

    backlog: int = attrs.field(default=4096, validator=validators.gt(0))


@asynccontextmanager
async def open_listeners(
    config: ListenConfig, environ: MutableMapping[str, str] | None = None
) -> AsyncGenerator[list[Listener], None]:
    """Listen as *config* says for as long as the block runs.

    Raises:
        ConfigurationError: An address is unusable, or a descriptor is no listening socket.
    """
    listeners = await _open(config, os.environ if environ is None else environ)
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


async def _open(config: ListenConfig, environ: MutableMapping[str, str]) -> list[Listener]:
    chosen = (config.uds is not None) + bool(config.fds) + config.systemd
    if chosen > 1:
        raise ConfigurationError("choose one of a Unix socket, descriptors and systemd to listen")
    if config.uds is not None:
        return [_listen_unix(config.uds, config.backlog)]
    if config.fds:
        return adopt_all({fd: f"fd {fd}" for fd in config.fds})
    if config.systemd:
        return adopt_from_systemd(config.systemd_name, environ)
    return await _listen_tcp(config.host, config.port, config.backlog)


async def _listen_tcp(host: str, port: int, backlog: int) -> list[Listener]:
    try:
        found = await trio.socket.getaddrinfo(
            host or None,
            port,
            type=stdlib_socket.SOCK_STREAM,
            flags=stdlib_socket.AI_PASSIVE,
        )
    except OSError as error:
        message = f"cannot listen on {host}: {error.strerror or error}"
        raise ConfigurationError(message) from error
    listeners: list[Listener] = []
    failures: list[OSError] = []
    for family, _, _, _, address in dict.fromkeys(found):
        if listeners and port == 0:
            address = (address[0], listeners[0].socket.getsockname()[1], *address[2:])  # noqa: PLW2901
        try:
            sock = _bind_tcp(family, address, backlog, only_v6=not host)
        except OSError as error:
            failures.append(error)
            continue
        bound = sock.getsockname()
        listeners.append(Listener(sock, f"[{bound[0]}]:{bound[1]}"))
    # A name may stand for an address family that this machine lacks; one address is enough.
    fatal = [e for e in failures if e.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)]
    if fatal or not listeners:
        for listener in listeners:
            listener.close()
        failure = (fatal or failures)[0]
        message = f"cannot listen on {host or '*'} port {port}: {os.strerror(failure.errno or 0)}"
        raise ConfigurationError(message) from failure
    return listeners


def _bind_tcp(
    family: int, address: tuple[object, ...], backlog: int, *, only_v6: bool
) -> stdlib_socket.socket:
    sock = stdlib_socket.socket(family, stdlib_socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEADDR, 1)
        if family == stdlib_socket.AF_INET6 and only_v6:
            sock.setsockopt(stdlib_socket.IPPROTO_IPV6, stdlib_socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _listen_unix(path: str, backlog: int) -> Listener:
    sock = stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.settimeout(0)
        sock.bind(path)
        sock.listen(backlog)
        status = os.lstat(path)
    except (OSError, ConfigurationError) as error:
        sock.close()
        if isinstance(error, ConfigurationError):
            raise
        message = f"cannot listen on the Unix socket {path}: {error.strerror or error}"
        raise ConfigurationError(message) from error
    return Listener(sock, f"unix:{path}", (path, status.st_dev, status.st_ino))


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody answers on.

    Raises:
        ConfigurationError: Somebody does, or the file is something else.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigurationError(f"cannot listen on {path}: the file exists and is no socket")
    with stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            unlink_own(path, status.st_dev, status.st_ino)
            return
        except BlockingIOError:
            pass  # its backlog is full: somebody is there, if busy
    raise ConfigurationError(f"cannot listen on {path}: another server answers there")
