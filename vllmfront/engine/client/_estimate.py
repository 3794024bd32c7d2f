"""How long it takes until an engine is back."""

from collections.abc import Iterable

import attrs

from vllmfront.engine.client._state import RankState

LEAST_SECONDS = 1.0
"""Of an engine that has been loading for longer than the last time."""


@attrs.frozen
class Loading:
    """What is known about a rank that does not serve."""

    state: RankState
    seconds_loading: float
    """How long its process has been loading, where it is."""

    load_seconds: float | None
    """How long it took the last time."""


def seconds_until_ready(ranks: Iterable[Loading]) -> float | None:
    """Return after how many seconds the first of *ranks* may serve; None where nobody knows.

    One that is dead counts as if it began to load now: whether it does is not known.
    """
    estimates: list[float] = []
    for rank in ranks:
        if rank.load_seconds is None:
            return None
        gone = rank.seconds_loading if rank.state is RankState.LOADING else 0.0
        estimates.append(max(LEAST_SECONDS, rank.load_seconds - gone))
    return min(estimates, default=None)
