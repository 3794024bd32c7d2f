"""Why a request ends that is left early, by the error that its owner leaves it with."""

from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import (
    EngineDied,
    EngineUnavailable,
    Reason,
    RequestInterrupted,
    RequestTimedOut,
    VllmFrontError,
)


def cause_of(error: BaseException | None) -> TerminalCause:
    """Return why a block ends with *error* although its request has not ended."""
    if isinstance(error, (EngineDied, RequestInterrupted)):
        return TerminalCause.ENGINE_DIED
    if isinstance(error, RequestTimedOut):
        return TerminalCause.TIMED_OUT
    if isinstance(error, EngineUnavailable):
        closing = error.reason is Reason.DRAINING
        return TerminalCause.SHUTDOWN if closing else TerminalCause.ENGINE_DIED
    if isinstance(error, VllmFrontError):
        return TerminalCause.ENGINE_ERROR
    if isinstance(error, Exception):
        return TerminalCause.INTERNAL_ERROR
    return TerminalCause.CLIENT_GONE
