"""All errors raised on purpose, sorted by who is to blame.

The HTTP status of each is decided in one table, in ``vllmfront.api``.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Self


class VllmFrontError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a bug."""

    def twin(self) -> Self:
        """Return the same error for another task to raise: each raise adds to a traceback."""
        twin = type(self).__new__(type(self))
        twin.args = self.args
        twin.__dict__.update(self.__dict__)
        return twin


# The client is to blame.


class RequestRejected(VllmFrontError):
    """Raised when the client must change the request; never retried. Becomes a 400.

    ``param`` names the offending field in the client's own words, or is None.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class MalformedRequest(RequestRejected):
    """Raised when a body is no JSON, or a value in it has a wrong type. Becomes a 400."""

    @classmethod
    def misfit(cls, fault: str, where: str | None = None) -> Self:
        """Make the error of a body that is JSON and not what the route takes.

        *where* is the path to the value at fault, unless *fault* names it.
        """
        place = "" if where is None else f"{where}: "
        return cls(f"Failed to deserialize the JSON body into the target type: {place}{fault}")


class ModelNotFound(RequestRejected):
    """Raised when the named model or adapter is not served here. Becomes a 404."""


class FeatureNotServed(VllmFrontError):
    """Raised when a known feature is not part of this build. Becomes a 501."""


# Nobody is to blame, but what is there already stands against it.


class StateConflict(VllmFrontError):
    """Raised when an order does not go with the present state of the server. Becomes a 409.

    ``state`` names that state; ``holder`` who has brought it about, where that is known, and
    ``since`` when, in seconds since 1970.
    """

    def __init__(
        self, message: str, *, state: str, holder: str | None = None, since: float | None = None
    ) -> None:
        super().__init__(message)
        self.state = state
        self.holder = holder
        self.since = since


# The operator is to blame.


class ConfigurationError(VllmFrontError):
    """Raised when flags, files or the environment make no sense together. Ends start-up."""


# Nobody has to change the request: there is no engine for it now, or no room, or no time.


class Reason(enum.StrEnum):
    """Why a request is not served now, for programs: the ``reason`` of an error's JSON."""

    LOADING = "loading"
    """The model or its engine is being loaded for the first time."""

    RECOVERING = "recovering"
    """An engine died, and another is on its way."""

    STALLED = "stalled"
    """The engine lives, and says nothing about what it works on."""

    REFUSED = "refused"
    """The engine took the request for one that it can serve later."""

    PAUSED = "paused"
    """Generation is paused, for new weights most likely."""

    SLEEPING = "sleeping"
    """The engine has let go of weights or cache until it is woken up."""

    DRAINING = "draining"
    """This server is about to end."""

    FAILED = "failed"
    """No engine is left, and nobody has undertaken to start another."""

    QUEUE_FULL = "queue_full"
    """As many requests are in flight as the operator allows."""

    TOO_MANY_QUEUED_TOKENS = "too_many_queued_tokens"
    """As many prompt tokens wait for their first answer as the operator allows."""

    OVERLOADED = "overloaded"
    """This server itself is late with its work."""

    INTERRUPTED = "interrupted"
    """The engine died under the request, which could not be sent again or continued."""

    TIMED_OUT = "timed_out"
    """The request's own deadline has passed."""


class ServiceUnavailable(VllmFrontError):
    """Raised when a request cannot be served now; a later try may succeed. Becomes a 503.

    ``retry_after`` is a hint in seconds; ``reason`` is for programs, the message for people.
    """

    def __init__(self, message: str, *, reason: Reason, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.retry_after = retry_after


class EngineUnavailable(ServiceUnavailable):
    """Raised when the engine cannot take requests now. Becomes a 503."""


class GenerationHeld(EngineUnavailable):
    """Raised when somebody has paused generation, or sent the engine to sleep. Becomes a 503.

    ``mode`` is what they asked for, ``since`` when, in seconds since 1970.
    """

    def __init__(
        self, message: str, *, reason: Reason, mode: str, since: float, retry_after: float = 5.0
    ) -> None:
        super().__init__(message, reason=reason, retry_after=retry_after)
        self.mode = mode
        self.since = since


class Overloaded(ServiceUnavailable):
    """Raised when there is more to do than the operator allows. Becomes a 503.

    ``limit`` is what is allowed, and ``current`` what there was, in the unit of ``reason``.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Reason,
        limit: float,
        current: float,
        retry_after: float = 1.0,
    ) -> None:
        super().__init__(message, reason=reason, retry_after=retry_after)
        self.limit = limit
        self.current = current


class RequestInterrupted(ServiceUnavailable):
    """Raised when a request's engine died, and the request cannot go on elsewhere. Becomes a 503.

    It may be tried again, from its beginning.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message, reason=Reason.INTERRUPTED, retry_after=retry_after)


class RequestTimedOut(VllmFrontError):
    """Raised when a request's deadline passes before its end. Becomes a 504."""

    reason = Reason.TIMED_OUT


# The engine is to blame.


class EngineDied(VllmFrontError):
    """Raised to every stream and call of an engine that ended. Becomes a 500, health a 503."""


class EngineStalled(EngineDied):
    """Raised in its place where an engine was given up because of its silence: it may live."""


class EngineRequestFailed(VllmFrontError):
    """Raised when the engine ends one request with an error of its own. Becomes a 500."""


class UtilityCallFailed(VllmFrontError):
    """Raised when an engine answers a utility call with a failure text. Becomes a 500."""


class UtilityCallTimeout(VllmFrontError):
    """Raised when an engine does not answer a utility call in time. Becomes a 504."""


class ControlCallFailed(VllmFrontError):
    """Raised when some engine did not do what all were told. Becomes a 500.

    ``phase`` names the order; ``failures`` say what became of it, by rank.
    """

    def __init__(self, message: str, *, phase: str, failures: Mapping[int, str]) -> None:
        super().__init__(message)
        self.phase = phase
        self.failures = dict(failures)


class ControlCallTimeout(ControlCallFailed):
    """Raised when some engine did not answer an order in time. Becomes a 504."""


class StartupFailed(VllmFrontError):
    """Raised when an engine ends, or does not register in time, before it was ready."""


class ProtocolError(VllmFrontError):
    """Raised when bytes from the other side break the wire contract; costs that message."""


class RestartLimitExceeded(VllmFrontError):
    """Raised when a child failed too often; its supervisor gives up, so its parent must act.

    ``causes`` are the children's own errors, several where they failed at once. It is raised by
    itself, with them as its cause, whatever nurseries there are on the way.
    """

    def __init__(self, message: str, causes: Sequence[Exception] = ()) -> None:
        super().__init__(message)
        self.causes = tuple(causes)
        if self.causes:
            single = len(self.causes) == 1
            self.__cause__ = self.causes[0] if single else ExceptionGroup(message, self.causes)


class FirstStartFailed(RestartLimitExceeded):
    """Raised when a child failed before all had been ready once; never retried, on no level."""
