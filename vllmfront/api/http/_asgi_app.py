"""Our handlers as an ASGI application, for HTTP/2 servers and tests."""

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

import trio

from vllmfront.api.http._config import HttpConfig
from vllmfront.api.http._message import (
    CLIENT_GONE,
    CLIENT_STALLED,
    AsgiApp,
    AsgiMessage,
    Handler,
    Headers,
    HttpRequest,
)
from vllmfront.api.http._rejection import INTERNAL_ERROR, body_too_large

_LOGGER = logging.getLogger(__name__)


class AsgiResponse:
    """The ``ResponseWriter`` over ASGI: messages wait here until ``send`` has taken them.

    One task pumps; writers never wait. What piles up is the client's slowness, which
    ``congested`` tells, and past *max_unsent* bytes the request is given up.
    """

    def __init__(self, *, max_unsent: int, on_overflow: Callable[[], None]) -> None:
        self._messages: deque[AsgiMessage] = deque()
        self._max_unsent = max_unsent
        self._on_overflow = on_overflow
        self._unsent = 0
        self._arrived = trio.lowlevel.ParkingLot()
        self._drained_callback: Callable[[], None] | None = None
        self._extra_headers: list[tuple[bytes, bytes]] = []
        self.gone = False
        self.finished = False
        self.started = False
        self.status = 0
        self.head_time = 0.0

    def add_headers(self, headers: Headers) -> None:
        self._extra_headers.extend(headers)

    @property
    def congested(self) -> bool:
        return bool(self._messages)

    def on_drained(self, callback: Callable[[], None] | None) -> None:
        self._drained_callback = callback

    def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        lines = [(b"content-type", content_type)] if content_type else []
        lines += headers
        lines.append((b"content-length", b"%d" % len(body)))
        self.start(status, lines)
        self._put_body(body, more=False)

    def start(self, status: int, headers: Headers, *, hold: bool = False) -> None:  # noqa: ARG002
        if self.started:
            raise RuntimeError("the response has been started already")
        self.started = True
        self.status = status
        self.head_time = time.perf_counter()
        lines = [*headers, *self._extra_headers]
        self._put({"type": "http.response.start", "status": status, "headers": lines})

    def flush(self) -> None:
        """Do nothing: the server that calls us decides what goes out together."""

    def write(self, data: bytes) -> None:
        if not self.started:
            raise RuntimeError("the response has not been started")
        if data and not self.finished:
            self._put_body(data, more=True)
            if self._unsent > self._max_unsent:
                self._on_overflow()

    def offer(self, head: bytes, middle: bytes, tail: bytes) -> bool:
        if self.congested or self.finished:
            return False
        self.write(head + middle + tail)
        return True

    def finish(self, last: bytes = b"") -> None:
        if not self.started:
            raise RuntimeError("the response has not been started")
        if not self.finished:
            self._put_body(last, more=False)

    def _put_body(self, data: bytes, *, more: bool) -> None:
        self.finished = not more
        self._unsent += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": more})

    def _put(self, message: AsgiMessage) -> None:
        if not self.gone:
            self._messages.append(message)
            self._arrived.unpark_all()

    async def pump(self, send: Callable[[AsgiMessage], Awaitable[None]]) -> None:
        """Pass messages to *send* until the response is complete."""
        while True:
            while not self._messages:
                await self._arrived.park()
            # It stays in the queue while on its way: until then the client has not taken it.
            message = self._messages[0]
            await send(message)
            self._messages.popleft()
            self._unsent -= len(message.get("body", b""))
            if self._messages:
                continue
            if self.finished:
                return
            if self._drained_callback is not None:
                self._drained_callback()


class _AsgiConnection:
    """What a handler may ask about the connection behind an ASGI request."""

    def __init__(self) -> None:
        self.close_cause: str | None = None
        self._closed = trio.Event()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def end(self, cause: str) -> None:
        if self.close_cause is None:
            self.close_cause = cause
            self._closed.set()


def handler_as_asgi(handler: Handler, config: HttpConfig | None = None) -> AsgiApp:
    """Make *handler* callable by any ASGI server that runs on Trio."""
    limits = config or HttpConfig()

    async def app(
        scope: AsgiMessage,
        receive: Callable[[], Awaitable[AsgiMessage]],
        send: Callable[[AsgiMessage], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
        elif scope["type"] == "http":
            await _answer_http(handler, limits, scope, receive, send)
        else:
            raise NotImplementedError(f"the scope {scope['type']} is not served")

    return app


async def _answer_lifespan(
    receive: Callable[[], Awaitable[AsgiMessage]], send: Callable[[AsgiMessage], Awaitable[None]]
) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _answer_http(
    handler: Handler,
    config: HttpConfig,
    scope: AsgiMessage,
    receive: Callable[[], Awaitable[AsgiMessage]],
    send: Callable[[AsgiMessage], Awaitable[None]],
) -> None:
    body = await _read_body(receive, config.max_body_bytes)
    if body is None:
        return
    connection = _AsgiConnection()
    async with trio.open_nursery() as nursery:

        def end(cause: str) -> None:
            connection.end(cause)
            response.gone = True
            nursery.cancel_scope.cancel(reason=cause)

        response = AsgiResponse(
            max_unsent=config.max_unsent_bytes, on_overflow=lambda: end(CLIENT_STALLED)
        )
        watch = trio.CancelScope()

        async def watch_client() -> None:
            with watch:
                while (await receive())["type"] != "http.disconnect":
                    pass
                if not response.finished:
                    end(CLIENT_GONE)

        nursery.start_soon(_pump, response, send, end)
        if len(body) > config.max_body_bytes:
            rejection = body_too_large(config.max_body_bytes)
            response.respond(rejection.status, rejection.body)
        else:
            nursery.start_soon(watch_client)
            await _run_handler(handler, _make_request(scope, body, connection), response)
            watch.cancel(reason="handler done")


async def _pump(
    response: AsgiResponse,
    send: Callable[[AsgiMessage], Awaitable[None]],
    end: Callable[[str], None],
) -> None:
    try:
        await response.pump(send)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        end(CLIENT_GONE)


async def _run_handler(handler: Handler, request: HttpRequest, response: AsgiResponse) -> None:
    """Run *handler* and see to it that it answers.

    Raises:
        RuntimeError: The response was begun and left; only the ASGI server can cut it.
    """
    try:
        await handler(request, response)
    except Exception:
        _LOGGER.exception("The handler of %s %s failed", request.method, request.path)
    if not response.started:
        response.respond(500, INTERNAL_ERROR)
    elif not response.finished:
        raise RuntimeError(f"{request.method} {request.path}: the response was left unfinished")


async def _read_body(receive: Callable[[], Awaitable[AsgiMessage]], limit: int) -> bytes | None:
    """Return the whole body, or a little more than *limit* of it; None: the client has left."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False) or len(body) > limit:
            return bytes(body)


def _make_request(scope: AsgiMessage, body: bytes, connection: _AsgiConnection) -> HttpRequest:
    path: str = scope["path"]
    return HttpRequest(
        method=scope["method"],
        path=path,
        raw_path=scope.get("raw_path") or path.encode(),
        query=scope.get("query_string", b""),
        headers=[(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]],
        body=body,
        http_version=scope.get("http_version", "1.1"),
        scheme=scope.get("scheme", "http"),
        client=scope.get("client"),
        server=scope.get("server"),
        connection=connection,
    )
