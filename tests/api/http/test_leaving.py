"""Clients that leave: at each phase, one at a time and by the hundred."""

import gc
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.api.http.rig import Client, Rig, echo, ok, open_rig
from vllmfront.api.http import CLIENT_GONE, HttpConfig, HttpRequest, ResponseWriter


@attrs.define
class Recorder:
    """A handler that never finishes, and remembers how it ended."""

    stream: bool = False
    started: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    causes: list[str | None] = attrs.field(factory=list)

    async def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> None:
        if request.path == "/ok":
            await echo(request, response)
            return
        if self.stream:
            response.start(200, [])
            response.write(b"begun")
        self.started.set()
        try:
            await trio.sleep_forever()
        finally:
            self.causes.append(request.close_cause)
            if self.stream:
                response.write(b"nobody is there")
            self.ended.set()


@asynccontextmanager
async def balanced(rig: Rig) -> AsyncGenerator[None, None]:
    """Check that neither connections, requests, tasks nor descriptors are left behind."""
    await trio.testing.wait_all_tasks_blocked()
    tasks, descriptors = trio.lowlevel.current_statistics().tasks_living, open_descriptors()
    yield
    with trio.fail_after(5):
        await rig.server.wait_drained()
    await trio.testing.wait_all_tasks_blocked()

    assert rig.server.statistics().requests_active == 0
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    assert open_descriptors() == descriptors


def open_descriptors() -> int:
    gc.collect()  # what earlier tests left to the collector would close in between
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def leave(client: Client, *, reset: bool = False) -> None:
    if reset:
        linger = struct.pack("ii", 1, 0)
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.stream.socket.close()


BEGINNINGS = [
    b"",
    b"G",
    b"GET / HTTP/1.1\r\nHost:",
    b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer",
]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("data", BEGINNINGS)
async def test_a_client_may_leave_before_its_request_is_complete(data: bytes, reset: bool) -> None:
    recorder = Recorder()
    async with open_rig(recorder) as rig, balanced(rig):
        client = await rig.connect()
        await client.send(data)
        await trio.testing.wait_all_tasks_blocked()
        leave(client, reset=reset)

    assert not recorder.started.is_set()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ahead", [b"", b"GET /ok HTTP/1.1\r\n\r\n", b"GET /half"])
async def test_a_handler_is_told_that_its_client_has_gone(
    stream: bool, reset: bool, ahead: bytes
) -> None:
    recorder = Recorder(stream=stream)
    async with open_rig(recorder) as rig, balanced(rig):
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n" + ahead)
        await recorder.started.wait()
        leave(client, reset=reset)
        with trio.fail_after(1):
            await recorder.ended.wait()

        assert recorder.causes == [CLIENT_GONE]
        assert rig.server.statistics().ended == {CLIENT_GONE: 1}


async def test_half_closing_counts_as_leaving() -> None:
    recorder = Recorder()
    async with open_rig(recorder) as rig, balanced(rig):
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await recorder.started.wait()
        await client.stream.send_eof()

        assert await client.read_all() == b""
        assert recorder.causes == [CLIENT_GONE]
        client.stream.socket.close()


async def test_leaving_after_the_answer_is_no_leaving() -> None:
    async with open_rig(echo) as rig, balanced(rig):
        client = await rig.connect()
        await client.get()
        leave(client)
        await rig.server.wait_drained()

        assert rig.server.statistics().ended == {}


async def test_a_handler_may_tidy_up_after_its_answer_though_the_client_has_gone() -> None:
    go_on, tidied = trio.Event(), trio.Event()

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        await echo(request, response)
        await go_on.wait()
        tidied.set()

    async with open_rig(handler) as rig, balanced(rig):
        client = await rig.connect()
        await client.get()
        leave(client)
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
        with trio.fail_after(1):
            await tidied.wait()


async def test_a_handler_that_writes_is_told_too() -> None:
    """Where only the failing write shows that the client has gone."""
    causes: list[str | None] = []

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [])
        try:
            while True:
                response.write(b"x" * 1000)
                await trio.lowlevel.checkpoint()
        finally:
            causes.append(request.close_cause)

    async with open_rig(handler) as rig, balanced(rig):
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n" + b"GET /" + b"a" * 100_000)
        await client.read_until(b"x" * 1000)
        leave(client)
        with trio.fail_after(2):
            await rig.server.wait_drained()

    assert causes == [CLIENT_GONE]


async def test_whoever_waits_for_the_end_of_the_connection_hears_of_it() -> None:
    heard = trio.Event()

    async def handler(request: HttpRequest, _response: ResponseWriter) -> None:
        assert request.connection is not None
        with trio.CancelScope(shield=True):
            await request.connection.wait_closed()
            await request.connection.wait_closed()
        heard.set()

    async with open_rig(handler) as rig, balanced(rig):
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        leave(client)
        with trio.fail_after(1):
            await heard.wait()


async def come_and_go(rig: Rig, times: int) -> None:
    """Open *times* connections, each leaving in another phase."""
    endings = [*BEGINNINGS, b"GET / HTTP/1.1\r\n\r\n", b"\x00\r\n\r\n", b"GET /ok HTTP/1.1\r\n\r\n"]
    address = ("127.0.0.1", rig.port)
    for n in range(times):
        with socket.create_connection(address) as sock:
            sock.sendall(endings[n % len(endings)])
            if n % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("times", [500, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_books_balance_after_many_have_come_and_gone(
    times: int,
    stream: bool,
) -> None:
    async with open_rig(Recorder(stream=stream)) as rig, balanced(rig):
        await come_and_go(rig, times)
        with trio.fail_after(60):
            while True:
                if rig.server.statistics().connections_total == times:
                    break
                await trio.lowlevel.checkpoint()

    async with open_rig(echo) as rig:
        assert await (await rig.connect()).get() == ok(b"GET / 0!")


@pytest.mark.parametrize("times", [200, pytest.param(5_000, marks=pytest.mark.slow)])
async def test_many_connections_may_be_open_at_once(times: int) -> None:
    async with open_rig(echo, HttpConfig(keep_alive_timeout=60)) as rig, balanced(rig):
        clients = [await rig.connect() for _ in range(times)]
        for client in clients:
            assert await client.get() == ok(b"GET / 0!")
        assert rig.server.statistics().connections_open == times
        for client in clients:
            leave(client)
