"""One supervisor under a clock that jumps: start, ends and restarts of single children."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

import pytest
import trio
from trio.testing import MockClock

from tests.supervisor.stage import (
    Stage,
    generations,
    run_for,
    states,
    supervisor,
)
from vllmfront.errors import FirstStartFailed
from vllmfront.supervisor import (
    ChildState,
    Restart,
)


async def test_children_start_in_order_and_stop_in_reverse(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ready_after=2.0), stage.child("two", ready_after=1.0))
    await run_for(5.0, tree)

    assert stage.events == ["one begins", "two begins", "two stopped", "one stopped"]
    assert [time for time, _ in stage.log[:2]] == [0.0, 2.0]
    assert states(tree) == [ChildState.STOPPED, ChildState.STOPPED]
    assert tree.state is ChildState.STOPPED


async def test_a_failure_at_the_first_start_is_not_retried_and_stops_what_is_up(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one"), stage.child("two", ready_after=-1.0, ends_after=0.0, fails=True),
        stage.child("three"), intensity=9,
    )
    with pytest.raises(FirstStartFailed, match="two failed") as caught:
        await tree.run(trio.Event())

    assert isinstance(caught.value.__cause__, RuntimeError)
    assert stage.events == ["one begins", "two begins", "one stopped"]
    assert states(tree) == [ChildState.STOPPED, ChildState.FAILED, ChildState.NEW]
    assert tree.state is ChildState.FAILED


async def test_a_sibling_that_fails_during_the_first_start_ends_it_at_once(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True),
        stage.child("two", ready_after=50.0),
        intensity=9,
    )
    raised = await run_for(100.0, tree)

    assert isinstance(raised, FirstStartFailed)
    assert str(raised.__cause__) == "one broke"
    assert stage.log[2:] == [(6.0, "two cancelled")]


async def test_a_child_that_fails_is_restarted_alone_until_it_is_too_often(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one"), stage.child("two", ends_after=1.0, fails=True), intensity=2
    )
    raised = await run_for(100.0, tree)

    assert stage.events == ["one begins", *["two begins"] * 3, "one stopped"]
    assert repr(raised) == "RestartLimitExceeded('two failed more than 2 times in 60 s')"
    assert raised is not None
    assert repr(raised.__cause__) == "RuntimeError('two broke')"


async def test_failures_that_lie_far_apart_are_restarted_for_ever(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ends_after=10.0, fails=True), intensity=1, period=15.0)
    calm = supervisor(stage.child("one", ends_after=10.0, fails=True), intensity=1, period=5.0)

    assert await run_for(95.0, calm) is None
    assert generations(calm) == [10]
    assert await run_for(100.0, tree) is not None


@pytest.mark.parametrize(
    ("restart", "fails", "generation", "state"),
    [
        (Restart.PERMANENT, False, 2, ChildState.READY),
        (Restart.PERMANENT, True, 2, ChildState.READY),
        (Restart.TRANSIENT, False, 1, ChildState.STOPPED),
        (Restart.TRANSIENT, True, 2, ChildState.READY),
        (Restart.TEMPORARY, False, 1, ChildState.STOPPED),
        (Restart.TEMPORARY, True, 1, ChildState.FAILED),
    ],
)
async def test_the_restart_kind_decides(
    autojump_clock: MockClock,
    restart: Restart,
    *,
    fails: bool,
    generation: int,
    state: ChildState,
) -> None:
    tree = supervisor(
        Stage().child("one", ends_after=1.0, fails=fails, restart=restart), intensity=9
    )
    seen: list[list[ChildState]] = []
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(tree.run, stop)
        await trio.sleep(1.5)
        seen.append(states(tree))
        stop.set()

    assert seen == [[state]]
    assert generations(tree) == [generation]
