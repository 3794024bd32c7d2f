"""The request edge: every failure of a handler becomes an answer here, and nowhere else."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from vllmfront.api._errors import respond_with_error
from vllmfront.api.http import ANSWERED, HttpRequest, ResponseWriter
from vllmfront.api.openai._call import InferenceCall
from vllmfront.api.openai._closing import close_cause, shutting_down
from vllmfront.api.openai._ends import RequestEnds
from vllmfront.api.openai._exchange import StreamExchange
from vllmfront.api.openai._gate import Gate
from vllmfront.api.openai._service import ServiceSlot
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import ServiceUnavailable, VllmFrontError

_LOGGER = logging.getLogger(__name__)

Serve = Callable[[HttpRequest, ResponseWriter], Awaitable[None]]
ServeCall = Callable[[InferenceCall, ResponseWriter], Awaitable[None]]
"""Returns a ``StreamExchange`` that has begun, or what the connection's task has to await."""


class InferenceRoute:
    """A handler around *serve*: lets its requests in, and takes down the one end of each."""

    def __init__(self, slot: ServiceSlot, gate: Gate, ends: RequestEnds, serve: ServeCall) -> None:
        self._slot = slot
        self._gate = gate
        self._ends = ends
        self._serve = serve

    def __call__(self, request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
        call = InferenceCall(request, self._gate)
        self._slot.load += 1
        try:
            self._gate.enter(call)
            serving = self._serve(call, response)
        except Exception as error:  # noqa: BLE001 (the request's edge)
            self._refuse(call, response, error)
            self._leave(call)
            return ANSWERED
        if isinstance(serving, StreamExchange):
            serving.on_end(partial(self._end, call, serving))
            return serving
        return self._run(call, response, serving)

    async def _run(
        self, call: InferenceCall, response: ResponseWriter, serving: Awaitable[None]
    ) -> None:
        try:
            await serving
        except trio.Cancelled:
            cause = close_cause(call.http)
            if cause is TerminalCause.SHUTDOWN:
                _answer(response, shutting_down())
            self._ends.note(call, cause)
            raise
        except Exception as error:  # noqa: BLE001 (the request's edge)
            self._refuse(call, response, error)
        else:
            self._ends.note(call)
        finally:
            self._leave(call)

    def _end(self, call: InferenceCall, exchange: StreamExchange) -> None:
        self._ends.note(call, exchange.cause, exchange.error)
        self._leave(call)

    def _refuse(self, call: InferenceCall, response: ResponseWriter, error: Exception) -> None:
        _answer(response, error)
        if isinstance(error, VllmFrontError):
            self._ends.note(call, error=error)
            return
        _LOGGER.error("Handling %s %s failed", call.http.method, call.http.path, exc_info=error)
        self._ends.note(call, TerminalCause.INTERNAL_ERROR)

    def _leave(self, call: InferenceCall) -> None:
        self._gate.leave(call)
        self._slot.load -= 1


class TextRoute:
    """A handler around *serve*, which needs no engine: answers what it raises."""

    def __init__(self, slot: ServiceSlot, gate: Gate, ends: RequestEnds, serve: Serve) -> None:
        self._slot = slot
        self._gate = gate
        self._ends = ends
        self._serve = serve

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        self._slot.load += 1
        try:
            self._gate.check_lag()
            await self._serve(request, response)
        except VllmFrontError as error:
            _answer(response, error)
            if isinstance(error, ServiceUnavailable):
                self._ends.note_refusal(error)
        except trio.Cancelled:
            if close_cause(request) is TerminalCause.SHUTDOWN:
                _answer(response, shutting_down())
            raise
        except Exception as error:
            _LOGGER.exception("Handling %s %s failed", request.method, request.path)
            _answer(response, error)
        finally:
            self._slot.load -= 1


def _answer(response: ResponseWriter, error: Exception) -> None:
    """Answer *error*, unless an answer is on its way that ends in its own manner."""
    if not response.started:
        respond_with_error(response, error)
