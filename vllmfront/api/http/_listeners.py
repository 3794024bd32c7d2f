"""Sockets that clients connect to: TCP, Unix, inherited, or handed over by systemd."""

import contextlib
import errno
import os
import socket as stdlib_socket
import stat
from collections.abc import AsyncGenerator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio
from attrs import validators

from vllmfront.errors import ConfigurationError

_FIRST_SYSTEMD_DESCRIPTOR = 3

_KEEP_ALIVE_PROBES = (
    (stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE, 1),
    (stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_KEEPIDLE, 60),
    (stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_KEEPINTVL, 15),
    (stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_KEEPCNT, 4),
)
"""Makes a client's vanishing without a word known after two minutes, also while we compute."""


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


@attrs.define(eq=False)
class Listener:
    """A listening socket and what must be cleaned up after it."""

    socket: stdlib_socket.socket
    name: str
    unlink: tuple[str, int, int] | None = None
    """A Unix socket's path, and the device and inode that make it ours."""

    def duplicate(self) -> "Listener":
        """Return the same socket for a child: one that closes it leaves ours, and any file, alone.

        Connections that arrive while no child accepts wait for the next one.
        """
        return Listener(self.socket.dup(), self.name)

    def probe_clients(self) -> None:
        """Let the kernel find out about clients that have vanished; connections inherit it."""
        if self.socket.family != stdlib_socket.AF_UNIX:
            for option in _KEEP_ALIVE_PROBES:
                self.socket.setsockopt(*option)

    def accept(self) -> tuple[stdlib_socket.socket, object]:
        """Return the next connection and its client's address.

        Raises:
            BlockingIOError: None waits.
            OSError: It cannot be had.
        """
        return self.socket.accept()

    def close(self) -> None:
        """Stop listening, waking whoever waits; may be called again."""
        if self.socket.fileno() < 0:
            return
        with contextlib.suppress(RuntimeError):  # outside of Trio nobody waits
            trio.lowlevel.notify_closing(self.socket)
        self.socket.close()
        if self.unlink is not None:
            _unlink_own(*self.unlink)


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


@contextmanager
def duplicate_listeners(listeners: Sequence[Listener]) -> Iterator[list[Listener]]:
    """Lend the sockets to a child for as long as the block runs; it may close them earlier."""
    with contextlib.ExitStack() as stack:
        copies = []
        for listener in listeners:
            copies.append(listener.duplicate())
            stack.callback(copies[-1].close)
        yield copies


async def _open(config: ListenConfig, environ: MutableMapping[str, str]) -> list[Listener]:
    chosen = (config.uds is not None) + bool(config.fds) + config.systemd
    if chosen > 1:
        raise ConfigurationError("choose one of a Unix socket, descriptors and systemd to listen")
    if config.uds is not None:
        return [_listen_unix(config.uds, config.backlog)]
    if config.fds:
        return _adopt_all({fd: f"fd {fd}" for fd in config.fds})
    if config.systemd:
        return _adopt_from_systemd(config.systemd_name, environ)
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
            _unlink_own(path, status.st_dev, status.st_ino)
            return
        except BlockingIOError:
            pass  # its backlog is full: somebody is there, if busy
    raise ConfigurationError(f"cannot listen on {path}: another server answers there")


def _unlink_own(path: str, device: int, inode: int) -> None:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if (status.st_dev, status.st_ino) == (device, inode):
            Path(path).unlink()


def _adopt_all(names: Mapping[int, str]) -> list[Listener]:
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


def _adopt_from_systemd(name: str | None, environ: MutableMapping[str, str]) -> list[Listener]:
    descriptors = take_systemd_descriptors(environ)
    chosen = {fd: f"systemd fd {fd}" for fd, label in descriptors if name in {None, label}}
    if not chosen:
        wanted = "sockets" if name is None else f"a socket named {name!r}"
        raise ConfigurationError(f"the service manager has not passed {wanted} (LISTEN_FDS)")
    return _adopt_all(chosen)


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
