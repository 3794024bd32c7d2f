"""What can go wrong between a trainer and the servers that it sends weights to."""

import enum
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import attrs


class WeightSyncError(Exception):
    """Base of all errors that this client raises on purpose."""


class CallFailed(WeightSyncError):
    """One server did not do what one call asked for.

    ``server`` is its base URL, ``call`` the path, ``status`` the HTTP status of its answer, or None
    where there was none. ``others`` are the failures of other servers at the same call.
    """

    def __init__(self, message: str, *, server: str, call: str, status: int | None = None) -> None:
        super().__init__(f"{server} {call}: {message}")
        self.server = server
        self.call = call
        self.status = status
        self.others: tuple[CallFailed, ...] = ()

    def at(self, server: str) -> "CallFailed | None":
        """Return what *server* failed at, this or one of the others."""
        return next((each for each in (self, *self.others) if each.server == server), None)


class ServerUnreachable(CallFailed):
    """No answer: the server is down, or the network. Whether it did the call is not known."""


class CallRefused(CallFailed):
    """The server says that the call itself is wrong (4xx): sending it again changes nothing."""


class StateConflict(CallRefused):
    """The call does not fit the state of the server (409), which is unharmed.

    ``state`` is the present state, as the server names it. ``holder`` and ``since`` (seconds since
    1970) tell who has paused it, where somebody else has.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str,
        call: str,
        state: str | None = None,
        holder: str | None = None,
        since: float | None = None,
    ) -> None:
        super().__init__(message, server=server, call=call, status=409)
        self.state = state
        self.holder = holder
        self.since = since


class ControlTimeout(CallFailed):
    """An engine did not answer the server in time (504); ``phase`` is what it was to do."""

    def __init__(self, message: str, *, server: str, call: str, phase: str | None = None) -> None:
        super().__init__(message, server=server, call=call, status=504)
        self.phase = phase


class EngineFailed(CallFailed):
    """An engine failed, or is not there (500, 503)."""


class LeaseLost(WeightSyncError):
    """A pause could not be renewed in time: servers may generate again, with whatever they have."""


class ServerState(enum.StrEnum):
    """In what state an update that failed has left a server."""

    RESUMED = "resumed"
    """It serves the weights that it had before."""

    RESTORED = "restored"
    """The same, after they were sent once more."""

    OTHERS = "held by others"
    """Somebody else has paused it; nothing of this update has reached it."""

    HELD = "held"
    """Paused by us, with some of the new weights: send all again, or the old ones."""

    UPDATED = "updated"
    """It serves the new weights, as other servers do not."""

    UNKNOWN = "unknown"
    """It does not answer, or did not do what would bring it back; its lease decides."""

    @property
    def serves_as_before(self) -> bool:
        return self in {ServerState.RESUMED, ServerState.RESTORED, ServerState.OTHERS}


class UpdateAbandoned(WeightSyncError):
    """The trainer itself has given an update up."""


@attrs.frozen
class ServerOutcome:
    """What became of one server when an update failed."""

    state: ServerState
    error: CallFailed | None = None
    """What this server did not do, where it was one that failed."""


class UpdateFailed(WeightSyncError):
    """An update did not happen; ``outcomes`` says what state each server is in, by its URL."""

    def __init__(self, message: str, outcomes: Mapping[str, ServerOutcome]) -> None:
        each = "; ".join(
            f"{server} is {outcome.state.value}" + (f" ({outcome.error})" if outcome.error else "")
            for server, outcome in outcomes.items()
        )
        super().__init__(f"{message}: {each}")
        self.outcomes = outcomes


_ERROR_OF_STATUS: Mapping[int, type[CallFailed]] = {
    HTTPStatus.INTERNAL_SERVER_ERROR: EngineFailed,
    HTTPStatus.SERVICE_UNAVAILABLE: EngineFailed,
}


def error_of_answer(
    server: str, call: str, status: int, error: Mapping[str, Any], text: str
) -> CallFailed:
    """Return what an answer with an error status means; *error* is the object in its JSON."""
    message = f"{status}: {error.get('message') or text or 'no reason given'}"
    if status == HTTPStatus.CONFLICT:
        return StateConflict(
            message,
            server=server,
            call=call,
            state=error.get("state"),
            holder=error.get("holder"),
            since=error.get("since"),
        )
    if status == HTTPStatus.GATEWAY_TIMEOUT:
        return ControlTimeout(message, server=server, call=call, phase=error.get("phase"))
    refused = status < HTTPStatus.INTERNAL_SERVER_ERROR
    kind = _ERROR_OF_STATUS.get(status, CallRefused if refused else CallFailed)
    return kind(message, server=server, call=call, status=status)
