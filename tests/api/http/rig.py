"""A server on a loopback socket, and a client that speaks bytes."""

import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.api.http import (
    Handler,
    HttpConfig,
    HttpRequest,
    HttpServer,
    ListenConfig,
    Listener,
    ResponseWriter,
    open_listeners,
    serve_http,
)

DATE = re.compile(rb"date: [^\r]+\r\n")


@attrs.define
class Client:
    """One raw connection; what it reads has no date, so that it can be compared."""

    stream: trio.SocketStream
    received: bytes = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def read(self) -> bytes:
        """Return what comes next, or b"" at the end."""
        return await self.stream.receive_some(1 << 20)

    async def read_until(self, end: bytes) -> bytes:
        while end not in self.received:
            data = await self.read()
            if not data:
                raise EOFError(self.received)
            self.received += data
        cut = self.received.index(end) + len(end)
        found, self.received = self.received[:cut], self.received[cut:]
        return DATE.sub(b"", found)

    async def read_all(self) -> bytes:
        """Return everything up to the end of the connection."""
        while data := await self.read():
            self.received += data
        found, self.received = self.received, b""
        return DATE.sub(b"", found)

    async def get(self, path: bytes = b"/") -> bytes:
        """Send a GET and return its answer, whose body ends with an exclamation mark."""
        await self.send(b"GET %b HTTP/1.1\r\n\r\n" % path)
        return await self.read_until(b"!")


@attrs.define
class Rig:
    """A running server and the way to reach it."""

    server: HttpServer
    listeners: list[Listener]
    port: int
    nursery: trio.Nursery
    clients: list[Client] = attrs.field(factory=list)

    async def connect(self, *, buffer: int | None = None) -> Client:
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        try:
            await sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        client = Client(trio.SocketStream(sock))
        self.clients.append(client)
        return client

    async def ask(self, data: bytes) -> bytes:
        """Send *data* on a connection of its own and return all that comes back."""
        client = await self.connect()
        await client.send(data)
        return await client.read_all()


@asynccontextmanager
async def open_rig(handler: Handler, config: HttpConfig | None = None) -> AsyncGenerator[Rig, None]:
    async with (
        open_listeners(ListenConfig(port=0)) as listeners,
        trio.open_nursery() as nursery,
    ):
        server = await nursery.start(serve_http, listeners, handler, config or HttpConfig())
        rig = Rig(server, listeners, listeners[0].socket.getsockname()[1], nursery)
        try:
            yield rig
        finally:
            for client in rig.clients:
                client.stream.socket.close()
            nursery.cancel_scope.cancel()


async def echo(request: HttpRequest, response: ResponseWriter) -> None:
    """Answer with what was asked."""
    await trio.lowlevel.checkpoint()
    text = f"{request.method} {request.path} {len(request.body)}!"
    response.respond(200, text.encode(), content_type=b"text/plain")


def ok(text: bytes, *extra: bytes) -> bytes:
    """Return the answer of ``echo`` as it is on the wire, without its date."""
    lines = b"".join(line + b"\r\n" for line in extra)
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n%b\r\n%b" % (
        len(text),
        lines,
        text,
    )
