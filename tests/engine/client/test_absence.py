"""When engines will be back, as far as the last time tells, and what is said meanwhile."""

import pytest

from vllmfront.engine.client.membership._absence import (
    LEAST_SECONDS,
    UNKNOWN_SECONDS,
    Loading,
    seconds_until_ready,
    unavailable,
)
from vllmfront.engine.client.membership._state import EngineState, RankState
from vllmfront.errors import EngineDied, EngineUnavailable, Reason


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([], None),
        ([Loading(RankState.DEAD, 0.0, None)], None),
        ([Loading(RankState.DEAD, 500.0, 40.0)], 40.0),
        ([Loading(RankState.DEAD, 500.0, 40.0, 15.0)], 55.0),
        ([Loading(RankState.LOADING, 10.0, 40.0, 15.0)], 30.0),
        ([Loading(RankState.LOADING, 15.0, 40.0)], 25.0),
        ([Loading(RankState.LOADING, 41.0, 40.0)], LEAST_SECONDS),
        ([Loading(RankState.LOADING, 15.0, 40.0), Loading(RankState.DEAD, 0.0, 20.0)], 20.0),
        ([Loading(RankState.LOADING, 15.0, 40.0), Loading(RankState.DEAD, 0.0, None)], None),
    ],
)
def test_the_first_that_may_serve_counts(ranks: list[Loading], expected: float | None) -> None:
    assert seconds_until_ready(ranks) == expected


@pytest.mark.parametrize(
    ("state", "rank", "reason", "text"),
    [
        (EngineState.LOADING, None, Reason.LOADING, "loading the model"),
        (EngineState.STALLED, None, Reason.STALLED, "The engine does not respond: killed."),
        (EngineState.RECOVERING, None, Reason.RECOVERING, "The engine is not back yet: killed."),
        (EngineState.READY, 3, Reason.RECOVERING, "Engine 3 is not back yet: killed."),
        (EngineState.FAILED, None, Reason.FAILED, "The engine has failed: killed."),
    ],
)
def test_what_is_said_to_whom_nobody_serves(
    state: EngineState, rank: int | None, reason: Reason, text: str
) -> None:
    error = unavailable(state, EngineDied("killed."), rank, 12.5)

    assert error.reason is reason
    assert text in str(error)
    if reason in (Reason.STALLED, Reason.RECOVERING):
        assert error.retry_after == 12.5
        assert unavailable(state, None, rank, None).retry_after == UNKNOWN_SECONDS


def test_who_gives_up_may_say_it_for_clients() -> None:
    end = EngineUnavailable("The server is shutting down.", reason=Reason.DRAINING)

    error = unavailable(EngineState.FAILED, end, None, None)

    assert error is not end
    assert (str(error), error.reason) == (str(end), Reason.DRAINING)
