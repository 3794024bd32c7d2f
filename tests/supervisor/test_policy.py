import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmfront.supervisor import Backoff, RestartPolicy


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    base = draw(st.floats(0.0, 100.0))
    return Backoff(
        base=base,
        factor=draw(st.floats(1.0, 10.0)),
        cap=draw(st.floats(base, 1000.0)),
        jitter=draw(st.floats(0.0, 1.0)),
        reset_after=draw(st.floats(0.1, 1000.0)),
    )


def test_each_delay_is_a_multiple_of_the_one_before_up_to_the_cap() -> None:
    backoff = Backoff(base=1.0, factor=2.0, cap=10.0, jitter=0.0)

    assert [backoff.delay(attempt, 0.0) for attempt in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_jitter_takes_off_at_most_its_share() -> None:
    backoff = Backoff(base=8.0, jitter=0.25)

    assert [backoff.delay(0, chance) for chance in (0.0, 0.5, 1.0)] == [8.0, 7.0, 6.0]


def test_no_base_restarts_at_once() -> None:
    assert Backoff(base=0.0).delay(50, 0.5) == 0.0


def test_a_factor_of_one_keeps_the_delay() -> None:
    assert Backoff(base=3.0, factor=1.0, jitter=0.0).delay(1000, 0.5) == 3.0


@settings(deadline=None)
@given(backoffs(), st.integers(0, 10**9), st.floats(0.0, 1.0))
def test_no_delay_is_negative_or_exceeds_the_cap(
    backoff: Backoff, attempt: int, chance: float
) -> None:
    delay = backoff.delay(attempt, chance)

    assert 0.0 <= delay <= backoff.longest(attempt) <= backoff.cap


@settings(deadline=None)
@given(backoffs(), st.integers(0, 1000))
def test_delays_do_not_fall(backoff: Backoff, attempt: int) -> None:
    assert backoff.longest(attempt) <= backoff.longest(attempt + 1) * (1 + 1e-12)


@settings(deadline=None)
@given(backoffs(), st.integers(0, 60))
def test_the_sum_of_delays_is_that_of_each(backoff: Backoff, count: int) -> None:
    each = math.fsum(backoff.longest(attempt) for attempt in range(count))

    assert math.isclose(backoff.longest_sum(count), each, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("intensity", "period", "base", "accepted"),
    [
        (3, 10.0, 1.0, True),  # 1 + 2 + 4
        (3, 7.0, 1.0, True),
        (3, 6.9, 1.0, False),
        (3, 10.0, 2.0, False),  # 2 + 4 + 8
        (1, 2.0, 2.0, True),
        (0, 1.0, 60.0, True),
        (10**9, 60.0, 0.0, True),
        (10**9, 60.0, 1.0, False),
    ],
)
def test_a_window_that_could_never_be_exceeded_is_refused(
    intensity: int, period: float, base: float, *, accepted: bool
) -> None:
    backoff = Backoff(base=base, factor=2.0, cap=60.0, jitter=0.5)
    if accepted:
        RestartPolicy(intensity=intensity, period=period, backoff=backoff)
        return

    with pytest.raises(ValueError, match="choose a longer period"):
        RestartPolicy(intensity=intensity, period=period, backoff=backoff)


def test_the_default_gives_up_at_once() -> None:
    assert RestartPolicy().intensity == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"base": -1.0},
        {"base": math.nan},
        {"base": math.inf},
        {"factor": 0.5},
        {"cap": 0.5},
        {"cap": math.inf},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"reset_after": 0.0},
    ],
)
def test_nonsense_in_a_backoff_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|below the first"):
        Backoff(**fields)


@pytest.mark.parametrize(
    ("intensity", "period"), [(-1, 1.0), (1, 0.0), (1, math.inf), (1, math.nan)]
)
def test_nonsense_in_a_policy_is_refused(intensity: int, period: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        RestartPolicy(intensity=intensity, period=period)
