"""Answers that go on without a task: one at a time, as long as their connection at most."""

import socket
from collections.abc import Awaitable
from contextlib import suppress

import attrs
import pytest
import trio

from tests.api.http.rig import ok, open_rig
from tests.api.http.test_leaving import balanced
from vllmfront.api.http import (
    ANSWERED,
    CLIENT_GONE,
    SHUTDOWN,
    Exchange,
    HttpConfig,
    HttpRequest,
    ResponseWriter,
    handler_as_asgi,
)


class Answer(Exchange):
    """An answer that the test gives, whenever it likes."""

    def __init__(self, request: HttpRequest, response: ResponseWriter) -> None:
        super().__init__()
        self.request = request
        self.response = response
        self.cuts: list[str | None] = []

    def give(self, text: bytes = b"later!") -> None:
        self.response.respond(200, text, content_type=b"text/plain")
        self.end()

    def cut(self) -> None:
        if not self.ended:
            self.cuts.append(self.request.close_cause)
            self.end()


@attrs.define
class Handler:
    """Begins an exchange for each request."""

    begun: list[Answer] = attrs.field(factory=list)
    arrived: trio.Event = attrs.field(factory=trio.Event)

    def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> Awaitable[None]:
        self.begun.append(Answer(request, response))
        self.arrived.set()
        return self.begun[-1]

    async def next(self) -> Answer:
        await self.arrived.wait()
        self.arrived = trio.Event()
        return self.begun[-1]


GET = b"GET / HTTP/1.1\r\n\r\n"


async def test_an_answer_comes_when_it_is_given_and_the_connection_goes_on() -> None:
    handler = Handler()
    async with open_rig(handler) as rig:
        client = await rig.connect()
        for text in (b"one!", b"two!"):
            await client.send(GET)
            answer = await handler.next()
            answer.give(text)

            assert await client.read_until(b"!") == ok(text)

        assert rig.server.statistics().requests_active == 0
        assert rig.server.statistics().requests_total == 2


async def test_pipelined_requests_are_answered_in_order() -> None:
    handler = Handler()
    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(GET * 3)
        for number in range(3):
            answer = await handler.next()
            assert len(handler.begun) == number + 1
            answer.give(b"%d!" % number)

            assert await client.read_until(b"!") == ok(b"%d!" % number)


async def test_very_many_pipelined_requests_that_are_answered_at_once() -> None:
    def handler(_request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
        response.respond(200, b"!", content_type=b"text/plain")
        return ANSWERED

    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(GET * 3000)
        for _ in range(3000):
            assert await client.read_until(b"!") == ok(b"!")


async def test_a_client_that_leaves_cuts_its_exchange() -> None:
    handler = Handler()
    async with open_rig(handler) as rig, balanced(rig):
        client = await rig.connect()
        await client.send(GET)
        answer = await handler.next()
        await client.stream.aclose()
        with trio.fail_after(5):
            await rig.server.wait_drained()

        assert answer.cuts == [CLIENT_GONE]
        answer.give()  # too late, and no harm


async def test_the_end_of_the_server_cuts_exchanges() -> None:
    handler = Handler()
    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(GET)
        answer = await handler.next()
        rig.server.abort_connections()
        await trio.testing.wait_all_tasks_blocked()

        assert answer.cuts == [SHUTDOWN]


async def test_an_exchange_is_cut_when_its_server_is_cancelled() -> None:
    handler = Handler()
    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(GET)
        answer = await handler.next()
        rig.nursery.cancel_scope.cancel()
    assert answer.cuts == [SHUTDOWN]


async def test_draining_waits_for_an_exchange_and_closes_after_it() -> None:
    handler = Handler()
    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(GET)
        answer = await handler.next()
        rig.server.begin_drain()
        await trio.testing.wait_all_tasks_blocked()
        answer.give()

        assert await client.read_all() == ok(b"later!", b"connection: close")
        with trio.fail_after(5):
            await rig.server.wait_drained()


async def test_a_stream_larger_than_the_socket_goes_out_before_the_next_request() -> None:
    handler = Handler()
    async with open_rig(handler) as rig:
        client = await rig.connect(buffer=4096)
        await client.send(GET * 2)
        answer = await handler.next()
        answer.response.respond(200, b"x" * 5_000_000 + b"!")
        answer.end()
        await trio.testing.wait_all_tasks_blocked()
        assert len(handler.begun) == 1

        assert len(await client.read_until(b"!")) > 5_000_000
        await handler.next()


@pytest.mark.filterwarnings("error")
async def test_a_handler_that_fails_before_it_returns_is_a_500() -> None:
    def handler(_request: HttpRequest, _response: ResponseWriter) -> Awaitable[None]:
        raise LookupError("a fault")

    async with open_rig(handler) as rig, balanced(rig):
        client = await rig.connect()
        await client.send(GET)

        assert (await client.read_until(b"}")).startswith(b"HTTP/1.1 500 ")
        await client.stream.aclose()


async def test_an_exchange_that_ends_without_an_answer_is_a_500() -> None:
    handler = Handler()
    async with open_rig(handler) as rig:
        client = await rig.connect()
        await client.send(GET)
        (await handler.next()).end()

        assert (await client.read_until(b"}")).startswith(b"HTTP/1.1 500 ")


async def test_an_exchange_can_be_awaited() -> None:
    """Over ASGI, for one."""
    handler = Handler()
    asked = [{"type": "http.request", "body": b"", "more_body": False}]
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        if asked:
            return asked.pop()
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: object) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handler_as_asgi(handler, HttpConfig()), scope, receive, send)
        (await handler.next()).give()

    assert len(sent) == 2


async def test_a_cancelled_wait_cuts_the_exchange() -> None:
    request = HttpRequest(method="GET", path="/", raw_path=b"/", query=b"", headers=[], body=b"")
    answer = Answer(request, response=None)  # type: ignore[arg-type] # nothing is answered
    with trio.CancelScope() as scope:
        scope.cancel()
        await answer

    assert answer.cuts == [None]


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("by_task", [False, True])
async def test_a_request_that_comes_while_its_connection_closes_is_served_or_not_begun(
    turns: int, *, by_task: bool
) -> None:
    """Nobody would await it, or cut it, once the connection's task has ended."""
    begun: list[Answer] = []
    ended = 0

    async def serve(answer: Answer) -> None:
        nonlocal ended
        try:
            await answer
        finally:
            ended += 1

    def handler(request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
        begun.append(Answer(request, response))
        return serve(begun[-1]) if by_task else begun[-1]

    async with open_rig(handler) as rig:
        for _ in range(6):  # tasks that are due in one turn run in no certain order
            with socket.create_connection(("127.0.0.1", rig.port)) as client:
                await trio.testing.wait_all_tasks_blocked()
                rig.server.close_idle()
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                with suppress(OSError):  # it may be closed already
                    client.send(GET)
                await trio.testing.wait_all_tasks_blocked()
                statistics = rig.server.statistics()

                assert statistics.requests_active == statistics.connections_open
            await rig.server.wait_drained()

    assert all(answer.ended for answer in begun)
    assert ended == (len(begun) if by_task else 0)
