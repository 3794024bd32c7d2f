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
from vllmfront.api.openai._service import ServiceSlot
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import EngineUnavailable, Reason, ServiceUnavailable, VllmFrontError

_LOGGER = logging.getLogger(__name__)

_CAUSES = {
    CLIENT_GONE: TerminalCause.CLIENT_GONE,
    CLIENT_STALLED: TerminalCause.CLIENT_STALLED,
    SHUTDOWN: TerminalCause.SHUTDOWN,
}

Serve = Callable[[HttpRequest, ResponseWriter], Awaitable[None]]


def close_cause(request: HttpRequest) -> TerminalCause:
    """Return why the handler of *request* is being cancelled."""
    return _CAUSES.get(request.close_cause or CLIENT_GONE, TerminalCause.CLIENT_GONE)


def shutting_down() -> EngineUnavailable:
    """Return what clients are told whose requests a shutdown cuts off."""
    return EngineUnavailable("The server is shutting down.", reason=Reason.DRAINING)


class InferenceRoute:
    """A handler around *serve*: counts it in the load, and answers what it raises."""

    def __init__(self, slot: ServiceSlot, serve: Serve) -> None:
        self._slot = slot
        self._serve = serve

    async def __call__(self, request: HttpRequest, response: ResponseWriter) -> None:
        self._slot.load += 1
        try:
            await self._serve(request, response)
        except VllmFrontError as error:
            self._answer(response, error)
        except trio.Cancelled:
            if close_cause(request) is TerminalCause.SHUTDOWN:
                self._answer(response, shutting_down())
            raise
        except Exception as error:
            _LOGGER.exception("Handling %s %s failed", request.method, request.path)
            if response.started:
                raise  # the connection has to be cut: this stream has no end
            self._answer(response, error)
        finally:
            self._slot.load -= 1

    def _answer(self, response: ResponseWriter, error: Exception) -> None:
        """Answer *error*, unless an answer is on its way that ends in its own manner."""
        if not response.started:
            answer = respond_with_error(response, error)
            if isinstance(error, ServiceUnavailable):  # one line of why is in the log already
                _LOGGER.debug("Refused a request with %d: %s", answer.status, error)
            elif answer.status >= 500:  # noqa: PLR2004  # server errors
                _LOGGER.error("A request failed with %d: %s", answer.status, error)
