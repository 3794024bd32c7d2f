"""The server: accepts connections and looks after them."""

import errno
import logging
import socket as stdlib_socket
import ssl
from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from vllmfront.api.http._config import HttpConfig
from vllmfront.api.http._connection import Connection
from vllmfront.api.http._listener import Listener
from vllmfront.api.http._message import SHUTDOWN, Handler
from vllmfront.api.http._readiness import Readiness
from vllmfront.api.http._reserve import DescriptorReserve
from vllmfront.api.http._state import ServerState
from vllmfront.api.http._tls import make_tls_context
from vllmfront.api.http._write_batch import WriteBatch
from vllmfront.errors import ConfigurationError

_LOGGER = logging.getLogger(__name__)

_ACCEPTS_A_TURN = 64
"""Connections accepted before other tasks get their turn."""

_CLIENT_LEFT = frozenset(
    {errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ETIMEDOUT, errno.EHOSTUNREACH}
)
"""Errors of one connection that ended before it was accepted, or was not let through."""

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})

_ADVICE = {
    errno.EMFILE: "; raise the process's limit of open files (ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "; raise the machine's limit of open files (fs.file-max)",
    errno.ENOBUFS: "; the machine is short of memory for sockets",
    errno.ENOMEM: "; the machine is short of memory",
}

_PAUSE = 0.1
"""Seconds without accepting when descriptors or memory have run out."""


@attrs.frozen(kw_only=True)
class HttpStatistics:
    """A server's books at one moment."""

    connections_open: int
    connections_total: int
    requests_active: int
    requests_total: int
    rejected: Mapping[int, int]
    """Requests refused before any handler, by status."""

    ended: Mapping[str, int]
    """Requests cut short, by cause."""

    accepting: bool
    draining: bool


class HttpServer:
    """A running server, as its owner sees it."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        state: ServerState,
        tls: ssl.SSLContext | None,
        reserve: DescriptorReserve,
    ) -> None:
        self._listeners = listeners
        self._state = state
        self._tls = tls
        self._reserve = reserve
        self._connections: set[Connection] = set()
        self._accept_scope = trio.CancelScope()
        self._accepting = trio.Event()
        self._accepting.set()
        self._emptied: trio.Event | None = None
        self.on_end: Callable[[], None] = lambda: None
        """Called after the end of each connection."""

        self._paused = False

    def __repr__(self) -> str:
        return f"<HttpServer {self.statistics()}>"

    @property
    def writes(self) -> WriteBatch:
        """What gathers the writes of all its connections, for who makes many at once."""
        return self._state.writes

    def statistics(self) -> HttpStatistics:
        state = self._state
        return HttpStatistics(
            connections_open=len(self._connections),
            connections_total=state.connections_total,
            requests_active=state.requests_active,
            requests_total=state.requests_total,
            rejected=dict(state.rejected),
            ended=dict(state.ended),
            accepting=not self._accept_scope.cancel_called and not self._paused,
            draining=state.draining,
        )

    def begin_drain(self, *, keep_listening: bool = False) -> None:
        """Close idle connections, and the others after the response in progress.

        The listeners are closed, unless *keep_listening*: then new connections are still
        served, one request each, so that handlers can refuse with a proper answer.
        """
        self._state.draining = self._state.announcing_close = True
        if not keep_listening:
            self._stop_accepting("draining")
            for listener in self._listeners:
                listener.close()
        for connection in list(self._connections):
            connection.drain()

    def retire(self) -> None:
        """Accept nothing more, and tell each client with its next response to connect anew.

        For a server whose listeners others serve as well, so that nobody notices: what waits
        there is theirs, no listener is closed, and an idle connection is kept for as long as it
        would be anyway, because its client may be sending a request at this moment.
        """
        self._state.announcing_close = True
        self._stop_accepting("others accept now")

    @property
    def keep_alive_timeout(self) -> float:
        """Seconds for which a connection without a request is kept."""
        return self._state.config.keep_alive_timeout

    def close_idle(self) -> None:
        """Close connections without a request, which may fail one that is on its way."""
        for connection in list(self._connections):
            connection.drain()

    def resume(self) -> None:
        """Accept again, after ``retire``; does nothing to a server that is draining."""
        if self._state.draining or not self._accept_scope.cancel_called:
            return
        self._state.announcing_close = False
        self._accept_scope = trio.CancelScope()
        self._accepting.set()

    def _stop_accepting(self, reason: str) -> None:
        self._accepting = trio.Event()
        self._accept_scope.cancel(reason=reason)

    async def wait_drained(self) -> None:
        """Return once no connection is open."""
        while self._connections:
            if self._emptied is None:
                self._emptied = trio.Event()
            await self._emptied.wait()

    def abort_connections(self) -> None:
        """End every connection now; handlers are cancelled with the cause 'shutdown'."""
        for connection in list(self._connections):
            connection.cut(SHUTDOWN)

    def reload_tls(self) -> None:
        """Read the certificates anew, for connections to come.

        Raises:
            ConfigurationError: They are unusable; the old ones stay in use.
        """
        config = self._state.config.tls
        if config is None:
            raise ConfigurationError("there is no certificate to reload: TLS is off")
        self._tls = make_tls_context(config)

    async def _accept_from(self, listener: Listener, nursery: trio.Nursery) -> None:
        sock = listener.socket
        if sock.fileno() < 0:
            return  # draining has begun, and closed it
        listener.probe_clients()
        while True:
            try:
                await trio.lowlevel.wait_readable(sock)
            except trio.ClosedResourceError:
                return
            for _ in range(_ACCEPTS_A_TURN):
                try:
                    accepted, address = listener.accept()
                except BlockingIOError:
                    break
                except trio.ClosedResourceError:
                    await trio.sleep_forever()  # nobody accepts for us any more
                except OSError as error:
                    if error.errno in _CLIENT_LEFT:
                        continue
                    if error.errno in _NO_DESCRIPTORS and self._reserve.give():
                        continue
                    await self._pause(error)
                    break
                self._resume()
                self._begin(accepted, address, nursery)

    async def _pause(self, error: OSError) -> None:
        if not self._paused:
            self._paused = True
            _LOGGER.error(
                "Accepting no HTTP connections for now, %d are open: %s%s",
                len(self._connections),
                error.strerror,
                _ADVICE.get(error.errno or 0, ""),
            )
        await trio.sleep(_PAUSE)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            _LOGGER.info("Accepting HTTP connections again")

    def _begin(self, sock: stdlib_socket.socket, address: object, nursery: trio.Nursery) -> None:
        sock.settimeout(0)
        client: tuple[str, int] | None = None
        server: tuple[str, int | None] | None = None
        if isinstance(address, tuple):
            client = address[:2]
            try:
                sock.setsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY, 1)
                server = sock.getsockname()[:2]
            except OSError:
                sock.close()
                return
        connection = Connection(sock, self._state, tls=self._tls, client=client, server=server)
        self._state.connections_total += 1
        self._connections.add(connection)
        nursery.start_soon(self._run, connection, name="http connection")

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._reserve.refill()
            self.on_end()
            if not self._connections and self._emptied is not None:
                self._emptied.set()
                self._emptied = None

    async def accept(self, nursery: trio.Nursery) -> None:
        """Accept while neither retired nor draining; connections run in *nursery*."""
        while True:
            await self._accepting.wait()
            with self._accept_scope:
                async with trio.open_nursery() as accepting:
                    for listener in self._listeners:
                        name = f"accept {listener.name}"
                        accepting.start_soon(self._accept_from, listener, nursery, name=name)


async def serve_http(  # noqa: ASYNC128 (its second half calls it)
    listeners: Sequence[Listener],
    handler: Handler,
    config: HttpConfig,
    *,
    task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve HTTP/1.x on *listeners* until cancelled; ``started()`` hands out the server.

    The listeners stay open when this is cancelled, so that whoever owns them can serve again;
    only ``begin_drain`` closes them. Connections end with the cancellation.

    Raises:
        ConfigurationError: The certificates of *config* are unusable.
    """
    tls = None if config.tls is None else make_tls_context(config.tls)
    with Readiness() as readiness, DescriptorReserve(config.reserved_descriptors) as reserve:
        state = ServerState(config=config, handler=handler, readiness=readiness)
        await _serve(HttpServer(listeners, state, tls, reserve), state, task_status)


async def _serve(
    server: HttpServer, state: ServerState, task_status: trio.TaskStatus[HttpServer]
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(state.deadlines.serve, name="http deadlines")
        await nursery.start(state.readiness.serve, name="http reader")
        nursery.start_soon(server.accept, nursery, name="http accept")
        task_status.started(server)
