"""The request edge: every failure of a handler becomes an answer here, and nowhere else."""

import logging
from collections.abc import Awaitable, Callable

import trio

from vllmfront.api._errors import respond_with_error
from vllmfront.api.http import (
    CLIENT_GONE,
    CLIENT_STALLED,
    SHUTDOWN,
    HttpRequest,
    ResponseWriter,
)
from vllmfront.api.openai._call import InferenceCall
from vllmfront.api.openai._ends import RequestEnds
from vllmfront.api.openai._gate import Gate
from vllmfront.api.openai._service import ServiceSlot
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import EngineUnavailable, Reason, VllmFrontError

_LOGGER = logging.getLogger(__name__)

_CAUSES = {
    CLIENT_GONE: TerminalCause.CLIENT_GONE,
    CLIENT_STALLED: TerminalCause.CLIENT_STALLED,
    SHUTDOWN: TerminalCause.SHUTDOWN,
}

Serve = Callable[[HttpRequest, ResponseWriter], Awaitable[None]]
ServeCall = Callable[[InferenceCall, ResponseWriter], Awaitable[None]]


def close_cause(request: HttpRequest) -> TerminalCause:
    """Return why the handler of *request* is being cancelled."""
    return _CAUSES.get(request.close_cause or CLIENT_GONE, TerminalCause.CLIENT_GONE)


def shutting_down() -> EngineUnavailable:
    """Return what clients are told whose requests a shutdown cuts off."""
    return EngineUnavailable("The server is shutting down.", reason=Reason.DRAINING)


class InferenceRoute:
    """A handler around *serve*: lets its requests in, and takes down the one end of each."""

    def __init__(self, slot: ServiceSlot, gate: Gate, ends: RequestEnds, serve: ServeCall) -> None:
        self._slot = slot
        self._gate = gate
        self._ends = ends
        self._serve = serve

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        call = InferenceCall(request, self._gate)
        self._slot.load += 1
        try:
            self._gate.enter(call)
            await self._serve(call, response)
        except VllmFrontError as error:
            _answer(response, error)
            self._ends.note(call, error=error)
        except trio.Cancelled:
            cause = close_cause(request)
            if cause is TerminalCause.SHUTDOWN:
                _answer(response, shutting_down())
            self._ends.note(call, cause)
            raise
        except Exception as error:
            _LOGGER.exception("Handling %s %s failed", request.method, request.path)
            _answer(response, error)
            self._ends.note(call, TerminalCause.INTERNAL_ERROR)
        else:
            self._ends.note(call)
        finally:
            self._gate.leave(call)
            self._slot.load -= 1


class TextRoute:
    """A handler around *serve*, which needs no engine: answers what it raises."""

    def __init__(self, slot: ServiceSlot, gate: Gate, serve: Serve) -> None:
        self._slot = slot
        self._gate = gate
        self._serve = serve

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        self._slot.load += 1
        try:
            self._gate.check_lag()
            await self._serve(request, response)
        except VllmFrontError as error:
            _answer(response, error)
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
