from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmfront.supervisor import ChildState, Strategy
from vllmfront.supervisor._strategy import Candidate, Incident, incidents, may_start

ANY_STRATEGY = st.sampled_from(Strategy)
FAILED_OF = st.integers(1, 8).flatmap(
    lambda count: st.tuples(st.sets(st.integers(0, count - 1), min_size=1), st.just(count))
)


@pytest.mark.parametrize(
    ("strategy", "failed", "expected"),
    [
        (Strategy.ONE_FOR_ONE, [1], [Incident((1,), (1,))]),
        (Strategy.ONE_FOR_ONE, [3, 1], [Incident((1,), (1,)), Incident((3,), (3,))]),
        (Strategy.ONE_FOR_ALL, [1], [Incident((1,), (0, 1, 2, 3))]),
        (Strategy.ONE_FOR_ALL, [3, 1], [Incident((1, 3), (0, 1, 2, 3))]),
        (Strategy.REST_FOR_ONE, [2], [Incident((2,), (2, 3))]),
        (Strategy.REST_FOR_ONE, [3, 1], [Incident((1, 3), (1, 2, 3))]),
        (Strategy.REST_FOR_ONE, [0], [Incident((0,), (0, 1, 2, 3))]),
        (Strategy.ONE_FOR_ALL, [], []),
    ],
)
def test_a_strategy_says_whom_failures_take_along(
    strategy: Strategy, failed: Collection[int], expected: list[Incident]
) -> None:
    assert list(incidents(strategy, failed, 4)) == expected


@settings(deadline=None)
@given(ANY_STRATEGY, FAILED_OF)
def test_each_failure_belongs_to_one_incident_that_affects_it(
    strategy: Strategy, failed_of: tuple[set[int], int]
) -> None:
    failed, count = failed_of
    found = incidents(strategy, failed, count)

    assert sorted(place for each in found for place in each.failed) == sorted(failed)
    for each in found:
        assert set(each.failed) <= set(each.affected) <= set(range(count))
        assert list(each.affected) == sorted(each.affected)


@settings(deadline=None)
@given(FAILED_OF)
def test_more_is_affected_the_closer_the_bond(failed_of: tuple[set[int], int]) -> None:
    failed, count = failed_of
    one, rest, everyone = (
        {place for each in incidents(strategy, failed, count) for place in each.affected}
        for strategy in (Strategy.ONE_FOR_ONE, Strategy.REST_FOR_ONE, Strategy.ONE_FOR_ALL)
    )

    assert one <= rest <= everyone == set(range(count))


UP = Candidate(ChildState.READY, None)
NEW = Candidate(ChildState.NEW, None)
DUE = Candidate(ChildState.BACKOFF, 10.0)
NOT_DUE = Candidate(ChildState.BACKOFF, 10.1)
STARTING = Candidate(ChildState.STARTING, None)
STOPPING = Candidate(ChildState.STOPPING, None)
STUCK = Candidate(ChildState.STUCK, None)
GONE = Candidate(ChildState.FAILED, None)
DONE = Candidate(ChildState.STOPPED, None)


@pytest.mark.parametrize(
    ("candidates", "ordered", "alone"),
    [
        ([], (), ()),
        ([NEW, NEW], (0,), (0, 1)),
        ([UP, NEW, NEW], (1,), (1, 2)),
        ([STARTING, NEW], (), (1,)),
        ([GONE, DONE, DUE, DUE], (2,), (2, 3)),
        ([NOT_DUE, DUE], (), (1,)),
        ([STOPPING, DUE], (), (1,)),
        ([STUCK, DUE], (), (1,)),
        ([UP, UP], (), ()),
    ],
)
def test_in_order_a_child_waits_for_those_before_it(
    candidates: list[Candidate], ordered: tuple[int, ...], alone: tuple[int, ...]
) -> None:
    assert may_start(candidates, 10.0, ordered=True) == ordered
    assert may_start(candidates, 10.0, ordered=False) == alone
