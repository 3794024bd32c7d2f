"""How often children are restarted, and when, under a clock that jumps."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

from itertools import pairwise

import attrs
import pytest
from trio.testing import MockClock

from tests.supervisor.stage import (
    STEADY,
    Stage,
    generations,
    run_for,
    supervisor,
)
from vllmfront.errors import RestartLimitExceeded


@pytest.mark.parametrize(("intensity", "given_up"), [(3, True), (4, False)])
async def test_exactly_as_many_restarts_as_the_intensity_are_tolerated(
    autojump_clock: MockClock, intensity: int, *, given_up: bool
) -> None:
    child = Stage().child("one", ends_after=1.0, fails=True, lives=4)
    tree = supervisor(child, intensity=intensity)
    raised = await run_for(50.0, tree)

    assert (raised is not None) is given_up
    assert generations(tree) == [4 if given_up else 5]


@pytest.mark.parametrize(("gap", "given_up"), [(10.0, True), (10.1, False)])
async def test_a_restart_counts_for_exactly_the_period(
    autojump_clock: MockClock, gap: float, *, given_up: bool
) -> None:
    child = Stage().child("one", ends_after=gap, fails=True, lives=2)
    tree = supervisor(child, intensity=1, period=10.0)

    assert (await run_for(50.0, tree) is not None) is given_up


async def test_the_window_stands_still_while_a_child_loads(autojump_clock: MockClock) -> None:
    stage = Stage()
    child = stage.child("one", ready_after=1000.0, start_budget=2000.0, ends_after=1.0, fails=True)
    tree = supervisor(child, intensity=3, period=60.0)
    raised = await run_for(10_000.0, tree)

    assert type(raised) is RestartLimitExceeded
    assert len(stage.times("one begins")) == 4


async def test_the_window_stands_still_while_a_sibling_loads(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("load", ready_after=[0.0, 500.0], start_budget=900.0, ends_after=1.0, lives=1),
        stage.child("one", ends_after=100.0, fails=True, lives=4),
        intensity=2,
        period=60.0,
    )
    raised = await run_for(10_000.0, tree)

    assert raised is not None
    assert stage.times("one begins") == [0.0, 100.0]


async def test_the_window_goes_on_when_loading_is_over(autojump_clock: MockClock) -> None:
    stage = Stage()
    child = stage.child("one", ready_after=1000.0, start_budget=2000.0, ends_after=61.0, fails=True)
    tree = supervisor(child, intensity=1, period=60.0)
    raised = await run_for(10_000.0, tree)

    assert raised is None
    assert len(stage.times("one begins")) == 10


async def test_each_restart_waits_twice_as_long_up_to_the_cap(autojump_clock: MockClock) -> None:
    stage = Stage()
    child = stage.child("one", ends_after=1.0, fails=True)
    backoff = attrs.evolve(STEADY, cap=4.0)
    raised = await run_for(100.0, supervisor(child, intensity=5, backoff=backoff))
    begins = stage.times("one begins")

    assert raised is not None
    assert [after - before - 1.0 for before, after in pairwise(begins)] == [1.0, 2.0, 4.0, 4.0, 4.0]


async def test_a_child_that_was_healthy_is_restarted_soon(autojump_clock: MockClock) -> None:
    stage = Stage()
    child = stage.child("one", ends_after=70.0, fails=True)
    tree = supervisor(child, intensity=9, period=600.0, backoff=STEADY)
    await run_for(300.0, tree)

    assert stage.times("one begins") == [0.0, 71.0, 142.0, 213.0, 284.0]


async def test_a_child_that_was_not_healthy_for_long_is_not(autojump_clock: MockClock) -> None:
    stage = Stage()
    child = stage.child("one", ends_after=50.0, fails=True)
    tree = supervisor(child, intensity=9, period=1000.0, backoff=STEADY)
    await run_for(200.0, tree)

    assert stage.times("one begins") == [0.0, 51.0, 103.0, 157.0]


async def test_jitter_shortens_a_delay_by_chance(autojump_clock: MockClock) -> None:
    stage = Stage()
    child = stage.child("one", ends_after=1.0, fails=True, lives=1)
    backoff = attrs.evolve(STEADY, base=10.0, jitter=0.4)
    await run_for(30.0, supervisor(child, intensity=1, backoff=backoff, random=lambda: 0.5))

    assert stage.times("one begins") == [0.0, 9.0]
