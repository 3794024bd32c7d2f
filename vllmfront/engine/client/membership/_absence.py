"""What is said to whom no engine serves: why, and how long it takes until one is back."""

from collections.abc import Iterable

import attrs

from vllmfront.engine.client.membership._state import EngineState, RankState
from vllmfront.errors import EngineUnavailable, Reason, VllmFrontError

LEAST_SECONDS = 1.0
"""Of an engine that has been loading for longer than the last time."""

UNKNOWN_SECONDS = 5.0
"""To try again after, where nobody knows how long an engine takes to come back."""


@attrs.frozen
class Loading:
    """What is known about a rank that does not serve."""

    state: RankState
    seconds_loading: float
    """How long its process has been loading, where it is."""

    load_seconds: float | None
    """How long it took the last time."""

    seconds_until_start: float = 0.0
    """Until a process is started in place of one that is dead, as far as somebody said."""


def seconds_until_ready(ranks: Iterable[Loading]) -> float | None:
    """Return after how many seconds the first of *ranks* may serve; None where nobody knows.

    One that is dead counts as if it began to load when it is to be started, or now.
    """
    estimates: list[float] = []
    for rank in ranks:
        if rank.load_seconds is None:
            return None
        loading = rank.state is RankState.LOADING
        ahead = -rank.seconds_loading if loading else rank.seconds_until_start
        estimates.append(max(LEAST_SECONDS, rank.load_seconds + ahead))
    return min(estimates, default=None)


def unavailable(
    state: EngineState, cause: VllmFrontError | None, rank: int | None, seconds: float | None
) -> EngineUnavailable:
    """Return why no engine takes a request.

    Args:
        state: Of the client.
        cause: What ended the last READY, if it has ended; or what to say, where whoever gave the
            engines up said it for clients, as an EngineUnavailable.
        rank: The only engine that was asked for; None where any would do.
        seconds: Until one serves again, where that is known.
    """
    if state is EngineState.FAILED and isinstance(cause, EngineUnavailable):
        return cause.twin()
    why = "" if cause is None else f": {str(cause).rstrip('.')}"
    if state is EngineState.FAILED:
        return EngineUnavailable(f"The engine has failed{why}.", reason=Reason.FAILED)
    if state is EngineState.LOADING:
        return EngineUnavailable(
            "The engine is loading the model; try again later", reason=Reason.LOADING
        )
    if state is EngineState.STALLED:
        text, reason = f"The engine does not respond{why}.", Reason.STALLED
    else:
        who = "The engine" if rank is None else f"Engine {rank}"
        text, reason = f"{who} is not back yet{why}.", Reason.RECOVERING
    return EngineUnavailable(text, reason=reason, retry_after=seconds or UNKNOWN_SECONDS)
