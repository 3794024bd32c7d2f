"""Why requests end: every admitted request has exactly one cause."""

import enum

from vllmfront.engine._output import FinishReason


class TerminalCause(enum.Enum):
    """How a request ended, as operators count it."""

    # Members are unique, and their enum's own hash is a call for each look-up.
    __hash__ = object.__hash__

    STOP = "stop"
    """The engine stopped, or a stop string was found here."""

    LENGTH = "length"
    REPETITION = "repetition"
    ENGINE_ABORTED = "engine_aborted"
    ENGINE_ERROR = "engine_error"
    ENGINE_DIED = "engine_died"
    """It could not go on elsewhere."""

    RECOVERY_TIMEOUT = "recovery_timeout"
    """No engine came in time for it to begin, or to go on."""

    CLIENT_GONE = "client_gone"
    CLIENT_STALLED = "client_stalled"
    ADMIN_ABORTED = "admin_aborted"
    TIMED_OUT = "timed_out"
    """Its own deadline passed."""

    SHUTDOWN = "shutdown"
    REFUSED = "refused"
    """Never reached an engine."""

    PROTOCOL_ERROR = "protocol_error"
    """The engine said something unusable about it."""

    INTERNAL_ERROR = "internal_error"
    """A fault of ours, in its output pipeline or its handler."""

    @property
    def finished_reason(self) -> str | None:
        """The label in ``request_success``, None for ends that do not count there."""
        return _FINISHED_REASONS.get(self)

    @property
    def ended_well(self) -> bool:
        """Whether the request ran to an end of its own."""
        return self in _ENDED_WELL

    @classmethod
    def of_finish(cls, reason: FinishReason) -> "TerminalCause":
        """Return the cause behind the engine's own *reason*."""
        return _OF_FINISH[reason]


_ENDED_WELL = {TerminalCause.STOP, TerminalCause.LENGTH, TerminalCause.REPETITION}

_FINISHED_REASONS = {
    TerminalCause.STOP: "stop",
    TerminalCause.LENGTH: "length",
    TerminalCause.REPETITION: "repetition",
    TerminalCause.ENGINE_ABORTED: "abort",
    TerminalCause.CLIENT_GONE: "abort",
    TerminalCause.CLIENT_STALLED: "abort",
    TerminalCause.ADMIN_ABORTED: "abort",
    TerminalCause.TIMED_OUT: "abort",
    TerminalCause.SHUTDOWN: "abort",
}

_OF_FINISH = {
    FinishReason.STOP: TerminalCause.STOP,
    FinishReason.LENGTH: TerminalCause.LENGTH,
    FinishReason.REPETITION: TerminalCause.REPETITION,
    FinishReason.ABORT: TerminalCause.ENGINE_ABORTED,
    FinishReason.ERROR: TerminalCause.ENGINE_ERROR,
}
