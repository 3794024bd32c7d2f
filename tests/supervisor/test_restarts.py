"""The policy at work, without any supervisor: it always escalates in the end."""

import math

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmfront.supervisor import Backoff, RestartPolicy
from vllmfront.supervisor._restarts import Restarts

STEADY = Backoff(base=1.0, factor=2.0, cap=60.0, jitter=0.0, reset_after=30.0)


@attrs.define
class Life:
    """A time in which children are up, wait, or start."""

    restarts: Restarts
    now: float = 0.0

    def fail(self, *names: str, after: float = 0.0, loading: float = 0.0) -> float | None:
        """Let children start for *loading* seconds, be ready for *after* seconds, and fail."""
        self.restarts.hold_clock(self.now)
        self.now += loading
        self.restarts.release_clock(self.now)
        self.now += after
        delay = self.restarts.incident(self.now, dict.fromkeys(names or ("one",), after))
        if delay is not None:
            self.now += delay
        return delay


def life(intensity: int, period: float, backoff: Backoff = STEADY) -> Life:
    policy = RestartPolicy(intensity=intensity, period=period, backoff=backoff)
    return Life(Restarts(policy, lambda: 0.0))


def test_delays_grow_until_there_is_one_restart_too_many() -> None:
    lived = life(3, 60.0)

    assert [lived.fail() for _ in range(4)] == [1.0, 2.0, 4.0, None]


def test_time_in_which_something_loads_does_not_age_the_window() -> None:
    lived = life(3, 60.0)

    assert [lived.fail(loading=1000.0) for _ in range(4)] == [1.0, 2.0, 4.0, None]


def test_time_in_which_all_is_well_ages_the_window() -> None:
    lived = life(1, 10.0)

    assert [lived.fail(after=10.5) for _ in range(20)] == [1.0] * 20


def test_a_delay_starts_over_after_health() -> None:
    lived = life(9, 1000.0)
    delays = [lived.fail(after=after) for after in (0.0, 0.0, 29.9, 30.0, 0.0)]

    assert delays == [1.0, 2.0, 4.0, 1.0, 2.0]


def test_a_delay_starts_over_when_the_window_has_forgotten_a_restart() -> None:
    lived = life(3, 10.0)
    delays = [lived.fail(), lived.fail(), lived.fail(after=9.0), lived.fail()]

    assert delays == [1.0, 2.0, 1.0, 2.0]


def test_each_child_has_its_own_delays_and_all_share_the_window() -> None:
    lived = life(3, 60.0)

    assert [lived.fail(name) for name in ("one", "two", "one", "two")] == [1.0, 1.0, 2.0, None]


def test_children_that_fail_together_count_once_and_wait_for_the_longest_delay() -> None:
    lived = life(3, 60.0)
    delays = [lived.fail("one"), lived.fail("one", "two")]

    assert delays == [1.0, 2.0]
    assert lived.restarts.count(lived.now) == 2
    assert [lived.restarts.count(lived.now, name) for name in ("one", "two")] == [2, 1]


def test_looking_at_the_count_changes_no_decision() -> None:
    watched, unwatched = life(3, 10.0), life(3, 10.0)
    for one in (watched, unwatched):
        one.fail()
        one.fail()
        one.now += 9.0
    watched.restarts.count(watched.now)

    assert watched.fail() == unwatched.fail() == 1.0


def test_jitter_comes_from_the_injected_source() -> None:
    chances = iter([0.0, 1.0, 0.5])
    policy = RestartPolicy(intensity=3, period=60.0, backoff=attrs.evolve(STEADY, jitter=0.5))
    restarts = Restarts(policy, lambda: next(chances))

    assert [restarts.incident(0.0, {"one": 0.0}) for _ in range(3)] == [1.0, 1.0, 3.0]


@st.composite
def policies(draw: st.DrawFn) -> RestartPolicy:
    base = draw(st.floats(0.01, 10.0))
    backoff = Backoff(
        base=base,
        factor=draw(st.floats(1.0, 4.0)),
        cap=draw(st.floats(base, 100.0)),
        jitter=draw(st.floats(0.0, 1.0)),
        reset_after=draw(st.floats(0.1, 200.0)),
    )
    intensity = draw(st.integers(0, 8))
    tightest = max(backoff.longest_sum(intensity), 0.01)
    return RestartPolicy(
        intensity=intensity,
        period=tightest * draw(st.just(1.0) | st.floats(1.0, 3.0)),
        backoff=backoff,
    )


FAILURES = st.tuples(
    st.sets(st.sampled_from(["one", "two", "three"]), min_size=1),
    st.floats(0.0, 300.0),
    st.floats(0.0, 300.0),
)


@settings(deadline=None)
@given(
    policies(),
    st.lists(FAILURES, max_size=30),
    st.floats(0.0, 1.0),
    st.lists(st.floats(0.0, 100.0), min_size=9, max_size=9),
    st.tuples(st.floats(0.0, 1e6), st.floats(0.0, 0.003)),
)
def test_whatever_came_before_a_permanent_failure_is_given_up(
    policy: RestartPolicy,
    past: list[tuple[set[str], float, float]],
    chance: float,
    loads: list[float],
    clock: tuple[float, float],
) -> None:
    begin, late = clock
    lived = Life(Restarts(policy, lambda: chance), begin)
    for names, uptime, loading in past:
        if lived.fail(*names, after=uptime, loading=loading) is None:
            return
    ends = [lived.fail(after=late, loading=load) for load in loads[: policy.intensity + 1]]

    assert None in ends


@settings(deadline=None)
@given(policies(), st.integers(1, 50))
def test_failures_farther_apart_than_the_period_are_never_too_many(
    policy: RestartPolicy, count: int
) -> None:
    lived = Life(Restarts(policy, lambda: 0.0))
    delays = [lived.fail(after=policy.period + 0.1) for _ in range(count)]

    assert (None in delays) == (policy.intensity == 0)


@settings(deadline=None)
@given(policies(), st.lists(FAILURES, max_size=30))
def test_no_more_restarts_are_granted_in_a_period_than_the_intensity(
    policy: RestartPolicy, past: list[tuple[set[str], float, float]]
) -> None:
    lived = Life(Restarts(policy, lambda: 0.0))
    granted: list[float] = []
    for names, uptime, _ in past:
        failed_at = lived.now + uptime
        if lived.fail(*names, after=uptime) is None:
            break
        granted.append(failed_at)

    for begin in granted:
        within = [time for time in granted if begin <= time <= begin + policy.period - 1e-3]
        assert len(within) <= policy.intensity


@pytest.mark.parametrize("intensity", [1, 3, 5])
def test_the_tightest_policy_that_is_accepted_still_gives_up(intensity: int) -> None:
    period = sum(2.0**n for n in range(intensity))
    lived = life(intensity, period)
    lived.now = 1e9 + 1 / 3
    delays = [lived.fail() for _ in range(intensity + 1)]

    assert delays[-1] is None
    assert math.isclose(sum(delay or 0.0 for delay in delays), period)
