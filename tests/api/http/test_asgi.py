"""ASGI both ways: applications as our handlers, our handlers as an application."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import quart
import quart_trio
import trio

from tests.api.http.rig import Rig, echo, ok, open_rig
from vllmfront.api.http import (
    CLIENT_GONE,
    CLIENT_STALLED,
    AsgiApp,
    HttpConfig,
    HttpRequest,
    ResponseWriter,
    handler_as_asgi,
    open_asgi_bridge,
)
from vllmfront.errors import ConfigurationError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
CLOSE = b"connection: close"


@asynccontextmanager
async def open_app(app: AsgiApp) -> AsyncGenerator[Rig, None]:
    async with open_asgi_bridge(app) as bridge, open_rig(bridge) as rig:
        yield rig


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def http_only(
    answer: Callable[[Message, Receive, Send], Awaitable[None]],
) -> AsgiApp:
    """An application that knows no lifespan, as many do not."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await answer(scope, receive, send)

    return app


# An application as our handler


async def test_an_application_sees_the_request_as_it_is() -> None:
    seen: list[Message] = []

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        seen.extend([scope, await receive()])
        await send(start((b"Content-Type", b"text/plain"), (b"content-length", b"99")))
        await send(body(b"done!"))

    async with open_app(http_only(answer)) as rig:
        client = await rig.connect()
        await client.send(b"POST /a%20b?q=1 HTTP/1.1\r\nX: y\r\nContent-Length: 2\r\n\r\nhi")

        assert await client.read_until(b"!") == ok(b"done!")
    scope, message = seen
    assert scope["type"] == "http"
    assert (scope["method"], scope["path"], scope["query_string"]) == ("POST", "/a b", b"q=1")
    assert (b"x", b"y") in scope["headers"]
    assert scope["client"][0] == scope["server"][0] == "127.0.0.1"
    assert message == {"type": "http.request", "body": b"hi", "more_body": False}


async def test_an_application_may_stream() -> None:
    async def answer(_scope: Message, _receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"one", more=True))
        await send(body(b"", more=True))
        await send(body(b"two!"))

    async with open_app(http_only(answer)) as rig:
        client = await rig.connect()

        assert (await client.get()).endswith(b"\r\n\r\n3\r\none\r\n4\r\ntwo!")
        assert await client.read_until(b"0\r\n\r\n") == b"\r\n0\r\n\r\n"


async def test_an_application_may_stream_a_known_length() -> None:
    async def answer(_scope: Message, _receive: Receive, send: Send) -> None:
        await send(start((b"content-length", b"4")))
        await send(body(b"one", more=True))
        await send(body(b"!"))

    async with open_app(http_only(answer)) as rig:
        client = await rig.connect()

        assert (await client.get()).endswith(b"content-length: 4\r\n\r\none!")
        assert (await client.get()).endswith(b"content-length: 4\r\n\r\none!")


async def test_an_answer_to_head_keeps_the_length_that_it_tells() -> None:
    async def answer(_scope: Message, _receive: Receive, send: Send) -> None:
        await send(start((b"content-length", b"1234")))
        await send(body(b""))

    async with open_app(http_only(answer)) as rig:
        answer_ = await rig.ask(b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert answer_ == b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\nconnection: close\r\n\r\n"


async def test_an_application_that_outruns_its_client_waits() -> None:
    sent = 0

    async def answer(_scope: Message, _receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(start())
        for _ in range(100):
            await send(body(b"x" * 100_000, more=True))
            sent += 1
        await send(body(b"!"))

    async with open_app(http_only(answer)) as rig:
        client = await rig.connect(buffer=65536)
        await client.send(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        before = sent
        received = await client.read_all()

    assert before < 100
    assert len(received) > 10_000_000


async def test_an_application_is_cancelled_when_its_client_leaves() -> None:
    begun, ended = trio.Event(), trio.Event()

    async def answer(_scope: Message, _receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"begun", more=True))
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_app(http_only(answer)) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await begun.wait()
        client.stream.socket.close()
        with trio.fail_after(1):
            await ended.wait()

        assert rig.server.statistics().ended == {CLIENT_GONE: 1}


async def test_an_application_that_shields_itself_is_told_of_the_disconnect() -> None:
    begun, told = trio.Event(), trio.Event()

    async def answer(_scope: Message, receive: Receive, _send: Send) -> None:
        await receive()
        begun.set()
        with trio.CancelScope(shield=True):
            assert await receive() == {"type": "http.disconnect"}
        told.set()

    async with open_app(http_only(answer)) as rig:
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await begun.wait()
        client.stream.socket.close()
        with trio.fail_after(1):
            await told.wait()


async def test_after_the_answer_the_application_hears_of_a_disconnect() -> None:
    heard: list[Message] = []

    async def answer(_scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                heard.append(await receive())

            nursery.start_soon(listen)
            await send(start())
            await send(body(b"done!"))

    async with open_app(http_only(answer)) as rig:
        await (await rig.connect()).get()
        await trio.testing.wait_all_tasks_blocked()

    assert heard == [{"type": "http.disconnect"}]


async def refuses_order(_scope: Message, _receive: Receive, send: Send) -> None:
    await send(body(b"too early"))


async def starts_twice(_scope: Message, _receive: Receive, send: Send) -> None:
    await send(start())
    await send(start())


async def says_what_nobody_understands(_scope: Message, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.trailers"})


async def says_nothing(_scope: Message, _receive: Receive, _send: Send) -> None:
    await trio.lowlevel.checkpoint()


async def fails(_scope: Message, _receive: Receive, _send: Send) -> None:
    await trio.lowlevel.checkpoint()
    raise LookupError("a bug")


@pytest.mark.parametrize(
    "answer", [refuses_order, starts_twice, says_what_nobody_understands, says_nothing, fails]
)
async def test_an_application_that_misbehaves_becomes_a_500(
    answer: Callable[[Message, Receive, Send], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with open_app(http_only(answer)) as rig:
        answer_ = await rig.ask(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert answer_.startswith(b"HTTP/1.1 500 ")
    assert "The handler of GET / failed" in caplog.text


async def test_an_application_that_fails_in_its_stream_cuts_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(_scope: Message, _receive: Receive, send: Send) -> None:
        await send(start())
        await send(body(b"begun", more=True))
        raise LookupError("a bug")

    async with open_app(http_only(answer)) as rig:
        answer_ = await rig.ask(b"GET / HTTP/1.1\r\n\r\n")

    assert answer_.endswith(b"begun\r\n")
    assert "a bug" in caplog.text


# Lifespan


@attrs.define
class Living:
    """An application with a lifespan, which it writes down."""

    answers: Sequence[Message]
    log: list[str] = attrs.field(factory=list)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.log.append(f"request with {scope['state']}")
            await send(start())
            await send(body(b"alive!"))
            return
        scope["state"]["pool"] = "p"
        for answer in self.answers:
            self.log.append((await receive())["type"])
            await send(answer)


COMPLETE = {"type": "lifespan.startup.complete"}


async def test_a_lifespan_surrounds_the_requests() -> None:
    app = Living([COMPLETE, {"type": "lifespan.shutdown.complete"}])
    async with open_app(app) as rig:
        await (await rig.connect()).get()

    assert app.log == ["lifespan.startup", "request with {'pool': 'p'}", "lifespan.shutdown"]


async def test_an_application_may_refuse_to_start() -> None:
    app = Living([{"type": "lifespan.startup.failed", "message": "no database"}])

    with pytest.raises(ConfigurationError, match="did not start: no database"):
        async with open_asgi_bridge(app):
            pass


async def test_an_application_that_fails_at_its_start_does_not_start() -> None:
    async def app(_scope: Message, receive: Receive, _send: Send) -> None:
        await receive()
        raise LookupError("no database")

    with pytest.raises(ConfigurationError, match="did not start: no database"):
        async with open_asgi_bridge(app):
            pass


async def test_a_failed_shutdown_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = Living([COMPLETE, {"type": "lifespan.shutdown.failed", "message": "stuck"}])
    async with open_asgi_bridge(app):
        pass

    assert "failed to stop: stuck" in caplog.text


async def test_a_lifespan_that_breaks_does_not_end_the_service(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send(start())
            await send(body(b"alive!"))
            return
        await receive()
        await send(COMPLETE)
        raise LookupError("a bug")

    async with open_app(app) as rig:
        assert (await (await rig.connect()).get()).endswith(b"alive!")
    assert "lifespan failed" in caplog.text


async def test_a_shutdown_that_hangs_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def app(_scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        await send(COMPLETE)
        await trio.sleep_forever()

    async with open_asgi_bridge(app):
        pass

    assert autojump_clock.current_time() == 5.0


async def test_quart_answers_behind_the_bridge() -> None:
    app = quart_trio.QuartTrio("tests")
    log: list[str] = []

    @app.before_serving
    async def before() -> None:
        await trio.lowlevel.checkpoint()
        log.append("before")

    @app.after_serving
    async def after() -> None:
        await trio.lowlevel.checkpoint()
        log.append("after")

    @app.post("/echo/<name>")
    async def answer(name: str) -> dict[str, Any]:
        return {"name": name, "got": await quart.request.get_json()}

    @app.get("/stream")
    async def stream() -> quart.Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            for piece in (b"one", b"two!"):
                await trio.lowlevel.checkpoint()
                yield piece

        return quart.Response(pieces())

    async with open_app(cast("AsgiApp", app)) as rig:
        client = await rig.connect()
        await client.send(
            b"POST /echo/x HTTP/1.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 5\r\n\r\n[1,2]"
        )
        echoed = await client.read_until(b"}")
        streamed = await client.get(b"/stream")
        await client.read_until(b"0\r\n\r\n")

        assert echoed.endswith(b'{"got":[1,2],"name":"x"}')
        assert streamed.endswith(b"3\r\none\r\n4\r\ntwo!")
    assert log == ["before", "after"]


# Our handler as an application


@attrs.define
class AsgiClient:
    """The server's side of one ASGI request."""

    messages: list[Message] = attrs.field(factory=list)
    inbox: list[Message] = attrs.field(factory=lambda: [{"type": "http.request"}])
    gone: trio.Event = attrs.field(factory=trio.Event)
    gate: trio.Event | None = None
    broken: bool = False

    async def receive(self) -> Message:
        await trio.lowlevel.checkpoint()
        if self.inbox:
            return self.inbox.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        if self.broken:
            raise trio.BrokenResourceError
        if self.gate is not None:
            await self.gate.wait()
        self.messages.append(message)

    async def call(self, app: AsgiApp, **scope: object) -> None:
        await app(
            {
                "type": "http",
                "http_version": "2",
                "method": "GET",
                "scheme": "https",
                "path": "/a b",
                "raw_path": b"/a%20b",
                "query_string": b"q",
                "headers": [(b"X", b"y")],
                "client": ("1.2.3.4", 5),
                "server": ("h", 443),
            }
            | scope,
            self.receive,
            self.send,
        )

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


async def test_a_handler_answers_over_asgi() -> None:
    seen: list[HttpRequest] = []

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        seen.append(request)
        response.add_headers([(b"x-extra", b"1")])
        await echo(request, response)
        assert response.status == 200
        assert response.started

    client = AsgiClient(
        inbox=[
            {"type": "http.request", "body": b"he", "more_body": True},
            {"type": "http.request", "body": b"llo", "more_body": False},
        ]
    )
    await client.call(handler_as_asgi(handler))

    text = b"GET /a b 5!"
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", b"%d" % len(text)),
        (b"x-extra", b"1"),
    ]
    assert client.messages == [start(*headers), body(text)]
    (request,) = seen
    assert request == HttpRequest(
        method="GET",
        path="/a b",
        raw_path=b"/a%20b",
        query=b"q",
        headers=[(b"x", b"y")],
        body=b"hello",
        http_version="2",
        scheme="https",
        client=("1.2.3.4", 5),
        server=("h", 443),
        connection=request.connection,
    )


async def test_a_handler_streams_over_asgi() -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [(b"content-type", b"text/event-stream")])
        response.write(b"one")
        response.write(b"")
        await trio.lowlevel.checkpoint()
        response.finish(b"two")
        response.finish(b"late")
        response.write(b"late")

    client = AsgiClient()
    await client.call(handler_as_asgi(handler))

    assert client.messages == [
        start((b"content-type", b"text/event-stream")),
        body(b"one", more=True),
        body(b"two"),
    ]


async def test_a_slow_asgi_client_shows_as_congestion() -> None:
    drained: list[float] = []

    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        response.on_drained(lambda: drained.append(len(client.messages)))
        assert not response.congested
        response.start(200, [])
        response.write(b"one")
        await trio.testing.wait_all_tasks_blocked()
        congested = response.congested
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (congested, response.congested) == (True, False)
        response.finish()

    gate = trio.Event()
    client = AsgiClient(gate=gate)
    await client.call(handler_as_asgi(handler))

    assert drained == [2]


@pytest.mark.parametrize("how", ["disconnect", "broken send"])
async def test_a_handler_is_cancelled_when_the_asgi_client_leaves(how: str) -> None:
    causes: list[str | None] = []
    begun = trio.Event()

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [])
        response.write(b"one")
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            causes.append(request.close_cause)
            assert request.connection is not None
            with trio.CancelScope(shield=True):
                await request.connection.wait_closed()

    client = AsgiClient(broken=how == "broken send")
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, handler_as_asgi(handler))
            await begun.wait()
            if how == "disconnect":
                client.gone.set()

    assert causes == [CLIENT_GONE]


async def test_a_handler_that_floods_an_asgi_client_is_cancelled() -> None:
    causes: list[str | None] = []

    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        response.start(200, [])
        try:
            while True:
                response.write(b"x" * 1000)
                await trio.lowlevel.checkpoint()
        finally:
            causes.append(request.close_cause)

    client = AsgiClient(gate=trio.Event())
    with trio.fail_after(5):
        await client.call(handler_as_asgi(handler, HttpConfig(max_unsent_bytes=100_000)))

    assert causes == [CLIENT_STALLED]


async def test_a_client_that_leaves_in_its_body_reaches_no_handler() -> None:
    client = AsgiClient(inbox=[{"type": "http.request", "body": b"x", "more_body": True}])
    client.gone.set()
    await client.call(handler_as_asgi(echo))

    assert client.messages == []


async def test_a_body_over_the_limit_is_refused_over_asgi_too() -> None:
    client = AsgiClient(inbox=[{"type": "http.request", "body": b"x" * 11, "more_body": True}] * 2)
    await client.call(handler_as_asgi(echo, HttpConfig(max_body_bytes=10)))

    assert client.messages[0]["status"] == 400
    assert b"length limit exceeded" in client.body


async def test_a_failing_handler_is_a_500_over_asgi(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(_request: HttpRequest, _response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError("a bug")

    client = AsgiClient()
    await client.call(handler_as_asgi(handler))

    assert client.messages[0]["status"] == 500
    assert "a bug" in caplog.text


async def test_an_unfinished_stream_is_an_error_for_the_asgi_server() -> None:
    async def handler(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.start(200, [])

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="left unfinished")):
        await AsgiClient().call(handler_as_asgi(handler))


async def test_misused_writers_complain_over_asgi_too(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: HttpRequest, response: ResponseWriter) -> None:
        with pytest.raises(RuntimeError):
            response.write(b"x")
        with pytest.raises(RuntimeError):
            response.finish()
        await echo(request, response)
        with pytest.raises(RuntimeError):
            response.start(200, [])

    caplog.set_level(logging.WARNING)
    client = AsgiClient()
    await client.call(handler_as_asgi(handler))

    assert client.body == b"GET /a b 0!"
    assert caplog.records == []


async def test_the_lifespan_is_answered_and_other_scopes_are_not() -> None:
    app = handler_as_asgi(echo)
    client = AsgiClient(inbox=[{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    await app({"type": "lifespan"}, client.receive, client.send)

    assert [message["type"] for message in client.messages] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    with pytest.raises(NotImplementedError):
        await app({"type": "websocket"}, client.receive, client.send)


async def test_there_and_back_again() -> None:
    """Our handler, through ASGI, behind our server."""
    async with open_app(handler_as_asgi(echo)) as rig:
        assert await rig.ask(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n") == ok(
            b"GET / 0!", CLOSE
        )
