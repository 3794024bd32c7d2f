"""Children that fail at once, or while others are restarted, under a clock that jumps."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.supervisor.stage import (
    STEADY,
    Stage,
    generations,
    run_for,
    states,
    supervisor,
)
from vllmfront.errors import RestartLimitExceeded
from vllmfront.supervisor import (
    ChildSpec,
    ChildState,
    Strategy,
)
from vllmfront.supervisor._child import Exit

ONE_FOR_ONE, ONE_FOR_ALL, REST_FOR_ONE = Strategy


async def test_a_sibling_that_fails_during_a_delay_moves_it(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=3.0, fails=True, lives=1),
        stage.child("two", ends_after=1.0, fails=True, lives=1),
        strategy=REST_FOR_ONE,
        intensity=2,
        backoff=attrs.evolve(STEADY, base=10.0),
    )
    seen: list[float | None] = []

    async def observe() -> None:
        await trio.sleep(5.0)
        seen.extend(child.next_try for child in tree.snapshot().children)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(observe)
        await run_for(30.0, tree)

    assert seen == [stage.begun + 13.0, stage.begun + 13.0]
    assert stage.times("one begins") == [0.0, 13.0]
    assert stage.times("two begins") == [0.0, 13.0]


async def test_two_failures_in_one_tick_count_twice_when_children_are_strangers(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    children = [stage.child(name, ends_after=1.0, fails=True, lives=1) for name in ("one", "two")]
    tree = supervisor(*children, intensity=2)

    assert await run_for(1.5, tree) is None
    assert generations(tree) == [2, 2]
    assert tree.snapshot().restarts == 2


@pytest.mark.parametrize("strategy", [ONE_FOR_ALL, REST_FOR_ONE])
async def test_two_failures_in_one_tick_are_one_incident_when_children_belong_together(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    stage = Stage()
    children = [stage.child(name, ends_after=1.0, fails=True, lives=1) for name in ("one", "two")]
    tree = supervisor(*children, stage.child("three"), intensity=1, strategy=strategy)

    assert await run_for(1.5, tree) is None
    assert generations(tree) == [2, 2, 2]
    assert tree.snapshot().restarts == 1


@pytest.mark.parametrize("strategy", Strategy)
async def test_both_of_two_failures_in_one_tick_are_causes(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    stage = Stage()
    children = [stage.child(name, ends_after=1.0, fails=True) for name in ("one", "two")]
    raised = await run_for(9.0, supervisor(*children, stage.child("three"), strategy=strategy))

    assert type(raised) is RestartLimitExceeded
    assert sorted(str(cause) for cause in raised.causes) == ["one broke", "two broke"]
    assert isinstance(raised.__cause__, ExceptionGroup)
    assert raised.__cause__.exceptions == raised.causes
    assert "RuntimeError: one broke" in str(raised)
    assert "RuntimeError: two broke" in str(raised)


async def test_the_exit_of_a_past_incarnation_is_ignored(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ends_after=1.0, fails=True, lives=1), intensity=9)
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(tree.run, stop)
        await trio.sleep(2.0)
        (child,) = tree._tree.children
        tree._tree._exits.append(Exit(child, 1))
        tree._tree._wake.set()
        await trio.sleep(2.0)
        seen = states(tree), tree.snapshot().restarts
        stop.set()

    assert seen == ([ChildState.READY], 1)
    assert generations(tree) == [2]


async def test_the_exit_of_one_that_was_taken_along_is_no_failure(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()

    async def breaks_when_stopped(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await stop.wait()
        raise RuntimeError("broke when stopped")

    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True, lives=1),
        ChildSpec(name="two", run=breaks_when_stopped),
        strategy=ONE_FOR_ALL,
        intensity=1,
    )

    assert await run_for(5.0, tree) is None
    assert generations(tree) == [2, 2]
    assert tree.snapshot().restarts == 1
    assert tree.snapshot().children[1].last_failure == "RuntimeError: broke when stopped"


async def test_a_sibling_that_fails_during_an_ordered_restart_begins_it_anew(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=2.0, fails=True, lives=2),
        stage.child("two", ready_after=[0.0, 50.0, 0.0]),
        strategy=ONE_FOR_ALL,
        intensity=2,
    )
    raised = await run_for(50.0, tree)

    assert raised is None
    # At 4, the other is still starting; it does not look at the request to stop until cancelled.
    assert stage.times("two cancelled") == [9.0]
    assert stage.times("two begins") == [0.0, 2.0, 9.0]
    assert generations(tree) == [3, 3]
