"""HTTP messages as handlers see them, independent of what carries them."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

CLIENT_GONE = "client gone"
CLIENT_STALLED = "client stalled"
SHUTDOWN = "shutdown"
"""Why a connection ended before its response did."""

Headers = Sequence[tuple[bytes, bytes]]


class ConnectionState(Protocol):
    """What a handler may ask of the connection that its request came over."""

    @property
    def close_cause(self) -> str | None:
        """``CLIENT_GONE``, ``CLIENT_STALLED``, ``SHUTDOWN``, or None: the connection is well.

        Set before the handler is cancelled.
        """

    async def wait_closed(self) -> None:
        """Return once ``close_cause`` is set."""


class HttpRequest(Struct, kw_only=True, frozen=True):
    """A complete request: the body has been read, within the server's limits."""

    method: str
    path: str
    """Percent-decoded, without the query."""

    raw_path: bytes
    query: bytes
    headers: Headers
    """Names in lower case, in the order of arrival."""

    body: bytes
    http_version: str = "1.1"
    scheme: str = "http"
    client: tuple[str, int] | None = None
    server: tuple[str, int | None] | None = None
    connection: ConnectionState | None = None
    by_name: Mapping[bytes, bytes] | None = None
    """The first value of each header, where somebody has sorted them already."""

    @property
    def close_cause(self) -> str | None:
        """Why the handler is being cancelled, as ``ConnectionState.close_cause`` says it."""
        return None if self.connection is None else self.connection.close_cause

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of the header *name* (lower case), or None."""
        if self.by_name is not None:
            return self.by_name.get(name)
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def has_any(self, names: frozenset[bytes]) -> bool:
        """Tell whether there is a header of one of these *names* (lower case)."""
        if self.by_name is not None:
            return not names.isdisjoint(self.by_name)
        return any(key in names for key, _ in self.headers)


class ResponseWriter(Protocol):
    """Where a handler's answer goes. All methods are synchronous and never block.

    Two forms exist: the HTTP/1.1 connection itself, which writes to its socket at once and
    keeps what the socket does not take; and an ASGI bridge. Methods are no-ops once the client
    has gone.
    """

    @property
    def started(self) -> bool:
        """Whether the response head has been queued; after that no status can be sent."""

    @property
    def status(self) -> int:
        """The status of the response head that was queued, 0 before that."""

    @property
    def head_time(self) -> float:
        """When the response head was queued, by ``time.perf_counter``; 0.0 before that."""

    def add_headers(self, headers: Headers) -> None:
        """Send *headers* along with whatever head comes: CORS, request ids."""

    @property
    def congested(self) -> bool:
        """Whether earlier bytes are still unsent: the client reads slower than we write.

        A producer that can merge should then collect and wait for ``on_drained``.
        """

    def on_drained(self, callback: Callable[[], None] | None) -> None:
        """Call *callback* once each time the unsent bytes are gone; None takes it back."""

    def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        """Send a whole response with a Content-Length."""

    def start(self, status: int, headers: Headers, *, hold: bool = False) -> None:
        """Begin a streamed response: chunked for HTTP/1.1, close-delimited for 1.0.

        With *hold* the head may wait for the first piece, to go out in one send with it, or for
        ``flush``, whichever comes first.
        """

    def flush(self) -> None:
        """Send a head that is still held."""

    def write(self, data: bytes) -> None:
        """Send one piece of a streamed body, framed as a chunk of its own."""

    def offer(self, head: bytes, middle: bytes, tail: bytes) -> bool:
        """Send one piece made of three, as ``write`` does, if the client keeps up.

        Returns:
            False where it was not sent: earlier bytes are still unsent, or the response has ended.
        """

    def finish(self, last: bytes = b"") -> None:
        """End a streamed response properly; *last* is a final piece, sent along with the end."""


class Handler(Protocol):
    """Answers one request through *response*.

    The call itself comes from the server's reader and must not take long; what it returns is
    awaited in the connection's task, unless it is an ``Exchange``. When the client leaves, that is
    cancelled at its next checkpoint, or cut. A handler answers every ``Exception`` itself; one that
    escapes becomes a 500, or cuts the connection when the head is out.
    """

    def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> Awaitable[None]: ...


AsgiMessage = MutableMapping[str, Any]
AsgiApp = Callable[
    [AsgiMessage, Callable[[], Awaitable[AsgiMessage]], Callable[[AsgiMessage], Awaitable[None]]],
    Awaitable[None],
]
