"""ASGI applications as handlers, for routes that need a framework more than speed."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio

from vllmfront.api.http._message import AsgiApp, AsgiMessage, HttpRequest, ResponseWriter
from vllmfront.errors import ConfigurationError

_LOGGER = logging.getLogger(__name__)

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_SHUTDOWN_BUDGET = 5.0
"""Seconds that an application has for its lifespan's end."""


class AsgiBridge:
    """A handler that lets an ASGI application answer.

    The application runs in the handler's place: when the client leaves, it is cancelled; one
    that shields itself is told ``http.disconnect``.
    """

    def __init__(self, app: AsgiApp, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state

    async def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> None:
        exchange = _Exchange(request, response)
        scope = {
            "type": "http",
            "asgi": dict(_ASGI),
            "http_version": request.http_version,
            "method": request.method,
            "scheme": request.scheme,
            "path": request.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "root_path": "",
            "headers": list(request.headers),
            "client": request.client,
            "server": request.server,
            "state": dict(self._state),
        }
        await self._app(scope, exchange.receive, exchange.send)
        exchange.check_finished()


class _Exchange:
    """One request and its response, as the application sees them."""

    def __init__(self, request: HttpRequest, response: ResponseWriter) -> None:
        self._request = request
        self._response = response
        self._body_given = False
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._finished = trio.Event()

    async def receive(self) -> AsgiMessage:
        if not self._body_given:
            self._body_given = True
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        async with trio.open_nursery() as nursery:
            if self._request.connection is not None:
                nursery.start_soon(self._watch_client, nursery.cancel_scope)
            await self._finished.wait()
            nursery.cancel_scope.cancel(reason="response finished")
        return {"type": "http.disconnect"}

    async def _watch_client(self, scope: trio.CancelScope) -> None:
        assert self._request.connection is not None
        await self._request.connection.wait_closed()
        scope.cancel(reason="client gone")

    async def send(self, message: AsgiMessage) -> None:
        """Take one message; returns when the client keeps up with what was sent so far."""
        kind = message["type"]
        if kind == "http.response.start":
            if self._head is not None:
                raise RuntimeError("http.response.start came twice")
            headers = [(bytes(n).lower(), bytes(v)) for n, v in message.get("headers", ())]
            self._head = (message["status"], headers)
            await trio.lowlevel.checkpoint()
        elif kind == "http.response.body":
            self._send_body(message.get("body", b""), more=message.get("more_body", False))
            await self._wait_drained()
        else:
            raise RuntimeError(f"the message {kind} is not understood")

    def _send_body(self, data: bytes, *, more: bool) -> None:
        response = self._response
        if self._head is None:
            raise RuntimeError("http.response.body came before http.response.start")
        if self._finished.is_set():
            raise RuntimeError("http.response.body came after the end")
        status, headers = self._head
        if not response.started and not more and self._request.method != "HEAD":
            headers = [line for line in headers if line[0] != b"content-length"]
            response.respond(status, data, content_type=b"", headers=headers)
        else:
            if not response.started:
                response.start(status, headers)
            if more:
                response.write(data)
            else:
                response.finish(data)
        if not more:
            self._finished.set()

    async def _wait_drained(self) -> None:
        if not self._response.congested:
            await trio.lowlevel.checkpoint()
            return
        drained = trio.Event()
        self._response.on_drained(drained.set)
        await drained.wait()
        self._response.on_drained(None)

    def check_finished(self) -> None:
        if not self._finished.is_set():
            raise RuntimeError("the application returned without a complete response")


@asynccontextmanager
async def open_asgi_bridge(app: AsgiApp) -> AsyncGenerator[AsgiBridge, None]:
    """Run *app*'s lifespan for as long as the block runs.

    Raises:
        ConfigurationError: The application refused to start.
    """
    lifespan = _Lifespan(app)
    async with trio.open_nursery() as nursery:
        await nursery.start(lifespan.run)
        if lifespan.refusal is None:
            try:
                yield AsgiBridge(app, lifespan.state)
            finally:
                with trio.move_on_after(_SHUTDOWN_BUDGET, shield=True):
                    await lifespan.shut_down()
        nursery.cancel_scope.cancel(reason="ASGI bridge closed")
    if lifespan.refusal is not None:
        raise ConfigurationError(f"the ASGI application did not start: {lifespan.refusal}")


class _Lifespan:
    """Speaks the lifespan protocol; an application that knows none is left in peace."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self.state: dict[str, Any] = {}
        self._events_given = 0
        self._shutdown_asked = trio.Event()
        self._ended = trio.Event()
        self.refusal: str | None = None
        """Why the application did not start."""

        self._task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
        self._started = False

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status
        scope = {"type": "lifespan", "asgi": dict(_ASGI), "state": self.state}
        try:
            await self._app(scope, self._receive, self._send)
        except Exception as error:
            if self._started:
                _LOGGER.exception("The ASGI application's lifespan failed")
            elif self._events_given and self.refusal is None:
                _LOGGER.exception("The ASGI application failed to start")
                self.refusal = str(error)
        finally:
            self._ended.set()
        if not self._started:
            task_status.started()

    async def _receive(self) -> AsgiMessage:
        self._events_given += 1
        if self._events_given == 1:
            await trio.lowlevel.checkpoint()
            return {"type": "lifespan.startup"}
        await self._shutdown_asked.wait()
        return {"type": "lifespan.shutdown"}

    async def _send(self, message: AsgiMessage) -> None:
        await trio.lowlevel.checkpoint()
        kind = message["type"]
        if kind == "lifespan.startup.complete":
            self._started = True
            self._task_status.started()
        elif kind == "lifespan.startup.failed":
            self.refusal = message.get("message") or "no reason given"
        elif kind == "lifespan.shutdown.complete":
            self._ended.set()
        elif kind == "lifespan.shutdown.failed":
            _LOGGER.error("The ASGI application failed to stop: %s", message.get("message"))
            self._ended.set()

    async def shut_down(self) -> None:
        self._shutdown_asked.set()
        await self._ended.wait()
