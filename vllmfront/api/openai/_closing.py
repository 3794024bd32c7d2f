"""Why requests are cut off, and what their clients are told."""

from vllmfront.api.http import CLIENT_GONE, CLIENT_STALLED, SHUTDOWN, HttpRequest
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import EngineUnavailable, Reason

_CAUSES = {
    CLIENT_GONE: TerminalCause.CLIENT_GONE,
    CLIENT_STALLED: TerminalCause.CLIENT_STALLED,
    SHUTDOWN: TerminalCause.SHUTDOWN,
}


def close_cause(request: HttpRequest) -> TerminalCause:
    """Return why the handler of *request* is being cancelled."""
    return _CAUSES.get(request.close_cause or CLIENT_GONE, TerminalCause.CLIENT_GONE)


def shutting_down() -> EngineUnavailable:
    """Return what clients are told whose requests a shutdown cuts off."""
    return EngineUnavailable("The server is shutting down.", reason=Reason.DRAINING)
