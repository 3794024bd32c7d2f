"""HTTP clients that misbehave: they vanish, stop reading, or close their half."""

import enum
import math
import struct
from collections.abc import Mapping

import attrs
import httptools
import trio
from attrs import validators

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_STALLED_BUFFER = 4096
"""Bytes that the kernel keeps for a client that is to stall: with more, nobody would notice."""

_READ_SIZE = 65536
"""Bytes."""


class ClientFaultKind(enum.Enum):
    """What a client does wrong."""

    VANISH = "vanish"
    """Closes its connection, and reads no more."""

    RESET = "reset"
    """Vanishes so that the server gets an error, as from a client that was killed."""

    STALL = "stall"
    """Stops reading for some seconds, then goes on."""

    HALF_CLOSE = "half_close"
    """Says that it will send no more, and goes on reading; to many servers it has gone."""


@attrs.frozen(kw_only=True)
class ClientFault:
    """One fault of one client, and when."""

    kind: ClientFaultKind
    after_events: int = attrs.field(default=0, validator=validators.ge(0))
    """Server-sent events read before; 0: as soon as the request is sent."""

    seconds: float = attrs.field(default=0.0, validator=validators.ge(0))
    """Of a stall."""


@attrs.frozen(kw_only=True)
class HttpCall:
    """A request."""

    path: str
    method: str = "POST"
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""

    def bytes(self) -> bytes:
        """Return it as HTTP/1.1, for a connection of its own."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: localhost", "connection: close"]
        if self.body:
            lines += ["content-type: application/json", f"content-length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


@attrs.define
class Exchange:
    """What came back, as far as it was read."""

    status: int | None = None
    """None: no response began."""

    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    complete: bool = False
    """Whether the response came to its proper end."""

    left: bool = False
    """Whether the client left first, by its fault."""

    began: float = 0.0
    """Seconds of Trio's clock, as ``ended``."""

    ended: float = 0.0

    @property
    def events(self) -> int:
        """Whole server-sent events so far."""
        return self.body.count(b"\n\n")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


async def exchange(
    host: str,
    port: int,
    call: HttpCall,
    fault: ClientFault | None = None,
    *,
    into: Exchange | None = None,
) -> Exchange:
    """Send *call* over a connection of its own, and read the answer, or do what *fault* says.

    Time limits are the caller's; cancelled, it closes the connection.

    Args:
        host: An IPv4 address, or a name that has one.
        port: Its port.
        call: What to ask.
        fault: What goes wrong at this end.
        into: Is filled as the answer comes and returned, for a caller that may cancel.

    Raises:
        OSError: No connection could be made.
        httptools.HttpParserError: The response is no HTTP.
    """
    found = Exchange() if into is None else into
    found.began = trio.current_time()
    with trio.socket.socket() as sock:
        if fault is not None and fault.kind is ClientFaultKind.STALL:
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, _STALLED_BUFFER)
        await sock.connect((host, port))
        stream = trio.SocketStream(sock)
        try:
            await stream.send_all(call.bytes())
            await _read(stream, found, fault)
        except trio.BrokenResourceError:
            pass  # what came before the connection broke is in the exchange
        finally:
            found.ended = trio.current_time()
    return found


async def _read(stream: trio.SocketStream, found: Exchange, fault: ClientFault | None) -> None:
    parser = httptools.HttpResponseParser(found)
    due = math.inf if fault is None else fault.after_events
    while not found.complete:
        if fault is not None and found.events >= due:
            due = math.inf
            await _misbehave(stream, found, fault)
            if found.left:
                return
        data = await stream.receive_some(_READ_SIZE)
        if not data:
            return
        parser.feed_data(data)
        if found.status is None and parser.get_status_code():
            found.status = parser.get_status_code()


async def _misbehave(stream: trio.SocketStream, found: Exchange, fault: ClientFault) -> None:
    match fault.kind:
        case ClientFaultKind.STALL:
            await trio.sleep(fault.seconds)
        case ClientFaultKind.HALF_CLOSE:
            stream.socket.shutdown(trio.socket.SHUT_WR)
        case ClientFaultKind.VANISH | ClientFaultKind.RESET:
            if fault.kind is ClientFaultKind.RESET:
                stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, _RESET_ON_CLOSE)
            found.left = True
