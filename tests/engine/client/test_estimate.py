"""When engines will be back, as far as the last time tells."""

import pytest

from vllmfront.engine.client._estimate import LEAST_SECONDS, Loading, seconds_until_ready
from vllmfront.engine.client._state import RankState


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([], None),
        ([Loading(RankState.DEAD, 0.0, None)], None),
        ([Loading(RankState.DEAD, 500.0, 40.0)], 40.0),
        ([Loading(RankState.LOADING, 15.0, 40.0)], 25.0),
        ([Loading(RankState.LOADING, 41.0, 40.0)], LEAST_SECONDS),
        ([Loading(RankState.LOADING, 15.0, 40.0), Loading(RankState.DEAD, 0.0, 20.0)], 20.0),
        ([Loading(RankState.LOADING, 15.0, 40.0), Loading(RankState.DEAD, 0.0, None)], None),
    ],
)
def test_the_first_that_may_serve_counts(ranks: list[Loading], expected: float | None) -> None:
    assert seconds_until_ready(ranks) == expected
