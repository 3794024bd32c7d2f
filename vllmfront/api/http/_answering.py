"""The request in progress on a connection, and what answers it."""

import logging
from collections.abc import Awaitable
from typing import Protocol

from vllmfront.api.http._exchange import ANSWERED, Exchange
from vllmfront.api.http._message import SHUTDOWN, HttpRequest
from vllmfront.api.http._outlet import Outlet
from vllmfront.api.http._rejection import INTERNAL_ERROR
from vllmfront.api.http._response import Response
from vllmfront.api.http._state import ServerState

_LOGGER = logging.getLogger(__name__)


class AnsweringOwner(Protocol):
    """The connection around it."""

    close_cause: str | None

    def cut(self, cause: str, *, reset: bool = False) -> None:
        """End the connection."""

    def on_stalled(self) -> None:
        """The client reads nothing, and too much is waiting for it."""

    def on_pending(self) -> None:
        """``run`` has something to await, in the connection's task."""

    def on_answered(self, *, by_task: bool) -> None:
        """The handler is done with the request."""

    def on_abandoned(self, *, reset: bool) -> None:
        """The handler has left the response without its end: only a cut tells the client."""


class Answering:
    """Has one request at a time answered: by calls where its handler can, else in a task."""

    def __init__(self, outlet: Outlet, state: ServerState, owner: AnsweringOwner) -> None:
        self._outlet = outlet
        self._state = state
        self._owner = owner
        self._exchange: Exchange | None = None
        self._pending: Awaitable[None] | None = None
        self.request: HttpRequest | None = None
        """Until its response has left this process."""

        self.response: Response | None = None

    @property
    def pending(self) -> bool:
        """Whether ``run`` is due."""
        return self._pending is not None

    @property
    def finished(self) -> bool:
        """Whether the whole response has been written, or there is none to come."""
        return self.response is None or self.response.finished

    def begin(self, request: HttpRequest, *, reuse: bool) -> None:
        """Have *request* answered; *reuse*: the connection may carry another one after it."""
        state = self._state
        self.request = request
        response = self.response = Response(
            self._outlet,
            state,
            version=request.http_version,
            head_only=request.method == "HEAD",
            reuse=reuse,
            on_overflow=self._owner.on_stalled,
        )
        state.requests_total += 1
        state.requests_active += 1
        try:
            answering = state.handler(request, response)
        except Exception:
            _LOGGER.exception("The handler of %s %s failed", request.method, request.path)
            answering = ANSWERED
        if isinstance(answering, Exchange):
            self._exchange = answering
            answering.on_end(self._on_exchange_ended)
        else:
            self._pending = answering
            self._owner.on_pending()

    async def run(self) -> None:
        """Await what answers the request, and end it."""
        request, pending = self.request, self._pending
        assert request is not None
        assert pending is not None
        self._pending = None
        returned = False
        try:
            await pending
            returned = True
        except Exception:
            _LOGGER.exception("The handler of %s %s failed", request.method, request.path)
            returned = True
        finally:
            if not returned:  # cancelled, if not by us, then with the whole server
                self._owner.cut(SHUTDOWN)
            self._end(by_task=True)

    def cut(self) -> None:
        """End an answer that goes on by calls; nothing if there is none."""
        if self._exchange is not None:
            self._owner.cut(SHUTDOWN)  # if nobody has said why yet, then the whole server ends
            self._exchange.cut()

    def clear(self) -> None:
        """Forget the request, whose response has left."""
        self.request = self.response = None

    def _on_exchange_ended(self) -> None:
        self._exchange = None
        self._end(by_task=False)

    def _end(self, *, by_task: bool) -> None:
        """See to it that the client got a whole response, or can tell that it did not."""
        request, response, owner = self.request, self.response, self._owner
        assert request is not None
        assert response is not None
        self._state.requests_active -= 1
        if not response.started and owner.close_cause is None:
            response.respond(500, INTERNAL_ERROR)
        unfinished = response.started and not response.finished
        response.detach()
        if unfinished:
            owner.on_abandoned(reset=response.close_delimited)
            if owner.close_cause is None:
                _LOGGER.error("%s %s was left without its end", request.method, request.path)
        owner.on_answered(by_task=by_task)
