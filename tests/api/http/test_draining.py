import errno
import logging
import socket

import pytest
import trio

from tests.api.http.rig import echo, ok, open_rig
from vllmfront.api.http import (
    SHUTDOWN,
    HttpConfig,
    HttpRequest,
    ListenConfig,
    ResponseWriter,
    open_listeners,
    serve_http,
)

CLOSE = b"connection: close"


class Gate:
    """A handler that answers, or goes on streaming, when it is told to."""

    def __init__(self) -> None:
        self.entered = trio.Event()
        self.open = trio.Event()
        self.causes: list[str | None] = []

    async def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> None:
        if request.path == "/stream":
            response.start(200, [])
            response.write(b"begun")
        self.entered.set()
        try:
            await self.open.wait()
        except trio.Cancelled:
            self.causes.append(request.close_cause)
            if request.path == "/stream":
                response.finish(b"cut short")
            raise
        if request.path == "/stream":
            response.finish(b"done!")
        else:
            await echo(request, response)


async def test_draining_closes_idle_connections_and_refuses_new_ones() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        await client.get()
        rig.server.begin_drain()

        assert await client.read_all() == b""
        with pytest.raises(OSError, match="refused"):
            await rig.connect()
        await rig.server.wait_drained()
        assert rig.server.statistics().draining
        assert not rig.server.statistics().accepting


async def test_draining_lets_requests_in_progress_finish() -> None:
    gate = Gate()
    async with open_rig(gate) as rig:
        whole, stream = await rig.connect(), await rig.connect()
        await whole.send(b"GET / HTTP/1.1\r\n\r\nGET /next HTTP/1.1\r\n\r\n")
        await stream.send(b"GET /stream HTTP/1.1\r\n\r\n")
        await stream.read_until(b"begun")
        rig.server.begin_drain()
        gate.open.set()

        assert await whole.read_all() == ok(b"GET / 0!", CLOSE)
        assert (await stream.read_all()).endswith(b"done!\r\n0\r\n\r\n")
        whole.stream.socket.close()
        stream.stream.socket.close()
        await rig.server.wait_drained()
        assert rig.server.statistics().ended == {}


async def test_draining_lets_a_half_sent_request_finish() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        await client.send(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab")
        await trio.testing.wait_all_tasks_blocked(0.01)
        rig.server.begin_drain()
        await client.send(b"cd")

        assert await client.read_all() == ok(b"POST / 4!", CLOSE)


async def test_draining_may_go_on_listening_to_refuse_properly() -> None:
    async with open_rig(echo) as rig:
        rig.server.begin_drain(keep_listening=True)

        assert await rig.ask(b"GET / HTTP/1.1\r\n\r\n") == ok(b"GET / 0!", CLOSE)
        rig.server.begin_drain()
        with pytest.raises(OSError, match="refused"):
            await rig.connect()


async def test_aborting_tells_handlers_and_lets_them_say_a_last_word() -> None:
    gate = Gate()
    async with open_rig(gate) as rig:
        client = await rig.connect()
        await client.send(b"GET /stream HTTP/1.1\r\n\r\n")
        await client.read_until(b"begun")
        idle = await rig.connect()
        await trio.testing.wait_all_tasks_blocked(0.01)
        rig.server.begin_drain()
        rig.server.abort_connections()

        assert (await client.read_all()).endswith(b"cut short\r\n0\r\n\r\n")
        assert await idle.read_all() == b""
        await rig.server.wait_drained()
        assert gate.causes == [SHUTDOWN]
        assert rig.server.statistics().ended == {SHUTDOWN: 1}


async def test_draining_may_begin_before_anything_was_accepted() -> None:
    async with (
        open_listeners(ListenConfig(port=0)) as listeners,
        trio.open_nursery() as nursery,
    ):
        server = await nursery.start(serve_http, listeners, echo, HttpConfig())
        server.begin_drain()
        server.begin_drain()
        await trio.testing.wait_all_tasks_blocked()

        assert not server.statistics().accepting
        nursery.cancel_scope.cancel()


async def test_listeners_outlive_a_cancelled_server() -> None:
    async with open_listeners(ListenConfig(port=0)) as listeners:
        address = listeners[0].socket.getsockname()
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_http, listeners, echo, HttpConfig())
                stream = await trio.open_tcp_stream(*address)
                await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
                assert b"200 OK" in await stream.receive_some(1000)
                await stream.aclose()
                nursery.cancel_scope.cancel()


class Exhausted(socket.socket):
    """A listening socket that finds no free descriptor at first."""

    left = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_running_out_of_descriptors_pauses_accepting(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.02
    caplog.set_level(logging.INFO)
    async with open_listeners(ListenConfig(port=0)) as listeners, trio.open_nursery() as nursery:
        original = listeners[0].socket
        listeners[0].socket = Exhausted(fileno=original.detach())
        listeners[0].socket.settimeout(0)
        server = await nursery.start(serve_http, listeners, echo, HttpConfig())
        stream = await trio.open_tcp_stream(*listeners[0].socket.getsockname())
        await stream.send_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")

        assert b"200 OK" in await stream.receive_some(1000)
        assert trio.current_time() == pytest.approx(0.3)
        assert server.statistics().accepting
        await stream.aclose()
        nursery.cancel_scope.cancel()
    assert [record.getMessage() for record in caplog.records] == [
        (
            "Accepting no HTTP connections for now, 0 are open: Too many open files; raise the "
            "process's limit of open files (ulimit -n, LimitNOFILE=)"
        ),
        "Accepting HTTP connections again",
    ]
