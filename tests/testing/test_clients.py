"""Clients that misbehave before a server of a few lines that notes what it sees."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from vllmfront.testing import ClientFault, ClientFaultKind, Exchange, HttpCall, exchange

TEST_SECONDS = 10.0
CALL = HttpCall(path="/x", headers={"x-a": "b"}, body=b"{}")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"data: 1\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b"0\r\n\r\n"


@attrs.define
class Server:
    """Sends events one by one until the client leaves, or as many as it is told to."""

    port: int = 0
    events: int | None = None
    heard: bytes = b""
    end: str = ""
    """How the client left: ``eof``, ``reset``, or not at all."""

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            self.heard = await stream.receive_some()
            await stream.send_all(HEAD)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, stream)
                sent = 0
                while self.events is None or sent < self.events:
                    await stream.send_all(CHUNK)
                    sent += 1
                    await trio.sleep(0.001)
                await stream.send_all(LAST)
                await trio.sleep(0.02)
                nursery.cancel_scope.cancel(reason="all sent")
        except* trio.BrokenResourceError:
            self.end = self.end or "reset"

    async def _listen(self, stream: trio.SocketStream) -> None:
        if not await stream.receive_some():
            self.end = "eof"


@asynccontextmanager
async def open_server(events: int | None) -> AsyncGenerator[Server]:
    server = Server(events=events)
    with trio.fail_after(TEST_SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
            server.port = listeners[0].socket.getsockname()[1]
            yield server
            nursery.cancel_scope.cancel(reason="test over")


async def misbehave(server: Server, kind: ClientFaultKind, **fields: float) -> Exchange:
    fault = ClientFault(kind=kind, **fields)  # type: ignore[arg-type]  # keywords of the caller
    return await exchange("127.0.0.1", server.port, CALL, fault)


async def left(server: Server) -> str:
    while not server.end:  # noqa: ASYNC110 (the server's tasks end by themselves)
        await trio.sleep(0.001)
    return server.end


async def test_without_faults_everything_is_read() -> None:
    async with open_server(3) as server:
        found = await exchange("127.0.0.1", server.port, CALL)

    assert found.status == 200
    assert found.headers["content-type"] == "text/event-stream"
    assert found.body == EVENT * 3
    assert (found.complete, found.left) == (True, False)
    assert server.heard == CALL.bytes()
    assert b"POST /x HTTP/1.1\r\n" in server.heard
    assert b"\r\ncontent-length: 2\r\nx-a: b\r\n\r\n{}" in server.heard


@pytest.mark.parametrize("events", [0, 3])
@pytest.mark.parametrize(
    ("kind", "end"),
    [(ClientFaultKind.VANISH, {"eof", "reset"}), (ClientFaultKind.RESET, {"reset"})],
)
async def test_a_client_vanishes(kind: ClientFaultKind, end: set[str], events: int) -> None:
    async with open_server(None) as server:
        found = await misbehave(server, kind, after_events=events)
        end_seen = await left(server)

    assert (found.complete, found.left) == (False, True)
    assert found.events >= events
    assert end_seen in end


async def test_a_client_that_closes_its_half_reads_on() -> None:
    async with open_server(20) as server:
        found = await misbehave(server, ClientFaultKind.HALF_CLOSE, after_events=2)

    assert server.end == "eof"
    assert found.body == EVENT * 20
    assert (found.complete, found.left) == (True, False)


async def test_a_client_stalls_and_goes_on() -> None:
    async with open_server(5) as server:
        found = await misbehave(server, ClientFaultKind.STALL, after_events=2, seconds=0.2)

    assert found.body == EVENT * 5
    assert found.complete
    assert found.ended - found.began >= 0.2


async def test_a_response_that_breaks_off_is_incomplete() -> None:
    async def break_off(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HEAD + CHUNK)

    with trio.fail_after(TEST_SECONDS):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, break_off, 0)
            port = listeners[0].socket.getsockname()[1]
            found = await exchange("127.0.0.1", port, CALL)
            nursery.cancel_scope.cancel(reason="test over")

    assert found.body == EVENT
    assert (found.status, found.complete, found.left) == (200, False, False)
