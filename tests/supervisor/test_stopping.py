"""Stops under a clock that jumps: in order, in time, in each phase, and what does not stop."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.supervisor.stage import STEADY, Stage, deaf, make_shutdown, run_for, states, supervisor
from vllmfront.errors import FirstStartFailed, RestartLimitExceeded
from vllmfront.supervisor import (
    ChildNotReady,
    ChildSpec,
    ChildState,
    Strategy,
    Supervisor,
    _ladder,
)

LONG_STEADY = attrs.evolve(STEADY, base=10.0)


async def stop_during(stage: Stage, tree: Supervisor, seconds: float) -> float:
    """Ask for the end after *seconds*; return how long the tree then took."""
    await run_for(seconds, tree)
    return trio.current_time() - stage.begun - seconds


async def cancel_during(stage: Stage, tree: Supervisor, seconds: float) -> float:
    """Cancel from outside after *seconds*; return how long the tree then took."""
    with trio.move_on_after(seconds):
        await tree.run(trio.Event())
    return trio.current_time() - stage.begun - seconds


Ending = Callable[[Stage, Supervisor, float], Awaitable[float]]
ENDS = pytest.mark.parametrize("end", [stop_during, cancel_during])


@ENDS
async def test_children_that_are_ready_stop_in_reverse(
    autojump_clock: MockClock, end: Ending
) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", stop_takes=2.0), stage.child("two", stop_takes=1.0))
    took = await end(stage, tree, 5.0)

    assert stage.log[2:] == [(6.0, "two stopped"), (8.0, "one stopped")]
    assert took == 3.0
    assert states(tree) == [ChildState.STOPPED] * 2
    assert tree.state is ChildState.STOPPED


@ENDS
async def test_a_child_that_starts_is_stopped_within_its_budget(
    autojump_clock: MockClock, end: Ending
) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), stage.child("two", ready_after=50.0), stage.child("x"))
    took = await end(stage, tree, 1.0)

    # It does not look at the request before it is ready, hence its stop budget passes.
    assert stage.log[2:] == [(6.0, "two cancelled"), (6.0, "one stopped")]
    assert took == 5.0
    assert states(tree) == [ChildState.STOPPED, ChildState.STOPPED, ChildState.NEW]


@ENDS
async def test_a_delay_before_a_restart_ends_at_once(
    autojump_clock: MockClock, end: Ending
) -> None:
    stage = Stage()
    child = stage.child("two", ends_after=1.0, fails=True)
    tree = supervisor(stage.child("one"), child, intensity=1, backoff=LONG_STEADY)
    took = await end(stage, tree, 3.0)

    assert took == 0.0
    assert stage.log[2:] == [(3.0, "one stopped")]
    assert states(tree) == [ChildState.STOPPED] * 2


@ENDS
async def test_a_restart_is_stopped_as_well(autojump_clock: MockClock, end: Ending) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one"),
        stage.child("two", ready_after=[0.0, 50.0], ends_after=1.0, fails=True, lives=1),
        stage.child("three"),
        intensity=1,
        strategy=Strategy.REST_FOR_ONE,
    )
    took = await end(stage, tree, 3.0)

    assert took == 5.0
    assert stage.log[3:] == [
        (1.0, "three stopped"),
        (1.0, "two begins"),
        (8.0, "two cancelled"),
        (8.0, "one stopped"),
    ]
    assert states(tree) == [ChildState.STOPPED] * 3


@ENDS
async def test_the_stop_of_siblings_goes_on_where_it_was(
    autojump_clock: MockClock, end: Ending
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True),
        stage.child("two"),
        stage.child("three", stop_takes=50.0),
        intensity=1,
        strategy=Strategy.ONE_FOR_ALL,
    )
    took = await end(stage, tree, 3.0)

    # Its five seconds began at 1; they do not begin anew.
    assert stage.log[3:] == [(6.0, "three cancelled"), (6.0, "two stopped")]
    assert took == 3.0


@ENDS
async def test_the_cancelling_of_a_late_child_goes_on_where_it_was(
    autojump_clock: MockClock, end: Ending, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()

    async def clean_up(  # noqa: ASYNC128 (it is late)
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(8.0, shield=True):
                await trio.sleep_forever()
            stage.note("cleaned up")

    tree = supervisor(
        stage.child("one"), ChildSpec(name="two", run=clean_up, start_budget=2.0), intensity=1
    )
    if end is stop_during:
        with pytest.RaisesGroup(FirstStartFailed):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tree.run, stop := trio.Event())
                await trio.sleep(5.0)
                stop.set()
    else:
        await cancel_during(stage, tree, 5.0)

    assert stage.log[1:] == [(10.0, "cleaned up"), (10.0, "one stopped")]
    assert "did not stop" not in caplog.text


async def test_a_stop_wins_over_a_failure_of_the_same_tick(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), stage.child("two", ends_after=3.0, fails=True))

    assert await run_for(3.0, tree) is None
    assert tree.state is ChildState.STOPPED
    assert tree.snapshot().children[1].last_failure == "RuntimeError: two broke"


async def test_the_stop_budget_of_a_child_holds(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), stage.child("two", stop_takes=100.0, stop_budget=4.0))
    await run_for(1.0, tree)

    assert stage.log[2:] == [(5.0, "two cancelled"), (5.0, "one stopped")]


async def test_the_programs_deadline_holds_for_all_children_together(
    autojump_clock: MockClock,
) -> None:
    stage, shutdown = Stage(), make_shutdown(budget=2.0, margin=8.0)
    tree = supervisor(
        stage.child("one", stop_takes=6.0, stop_budget=60.0),
        stage.child("two", stop_takes=6.0, stop_budget=60.0),
        shutdown=shutdown,
    )
    await run_for(1.0, tree, shutdown)

    assert stage.log[2:] == [(7.0, "two stopped"), (11.0, "one cancelled")]


async def test_the_programs_deadline_holds_for_a_stop_that_began_before(
    autojump_clock: MockClock,
) -> None:
    stage, shutdown = Stage(), make_shutdown(budget=2.0, margin=1.0)
    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True),
        stage.child("two", stop_takes=90.0, stop_budget=60.0),
        strategy=Strategy.ONE_FOR_ALL,
        shutdown=shutdown,
        intensity=1,
    )
    await run_for(5.0, tree, shutdown)

    assert stage.log[2:] == [(8.0, "two cancelled")]


async def test_a_second_request_cuts_the_stop_short(autojump_clock: MockClock) -> None:
    stage, shutdown = Stage(), make_shutdown(budget=40.0, margin=20.0)
    tree = supervisor(stage.child("one", stop_takes=50.0, stop_budget=60.0), shutdown=shutdown)
    async with trio.open_nursery() as nursery:
        await nursery.start(tree.run, shutdown.requested)
        shutdown.request("first")
        await trio.sleep(2.0)
        shutdown.request("second")

    assert stage.log[-1] == (5.0, "one cancelled")


async def test_a_child_that_ignores_the_request_is_cancelled_by_its_supervisor_alone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    reasons: list[str] = []

    async def ignore(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as exc:
            reasons.append(str(exc))
            raise

    tree = supervisor(ChildSpec(name="one", run=ignore, stop_budget=3.0))
    with trio.move_on_after(1.0):
        await tree.run(trio.Event())

    assert "one did not stop in time" in reasons[0]
    assert "cancelling one, which did not stop within 3 s" in caplog.text


async def test_a_child_that_shields_its_clean_up_is_waited_for(autojump_clock: MockClock) -> None:
    stage = Stage()

    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(10.0, shield=True):
                await trio.sleep_forever()
            stage.note("cleaned up")

    tree = supervisor(stage.child("one"), ChildSpec(name="two", run=run))
    await run_for(1.0, tree)

    assert stage.log[1:] == [(16.0, "cleaned up"), (16.0, "one stopped")]
    assert states(tree) == [ChildState.STOPPED] * 2


async def test_a_failure_while_stopping_is_reported_and_changes_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await stop.wait()
        raise RuntimeError("at the last moment")

    tree = supervisor(ChildSpec(name="one", run=run))

    assert await run_for(1.0, tree) is None
    assert "root/one failed while stopping: RuntimeError: at the last moment" in caplog.text
    assert states(tree) == [ChildState.STOPPED]


async def test_a_child_that_cannot_be_cancelled_is_stuck_and_shown(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    stage, release, shutdown = Stage(), trio.Event(), make_shutdown()
    tree = supervisor(stage.child("one"), deaf("two", release), shutdown=shutdown)
    async with trio.open_nursery() as nursery:
        await nursery.start(tree.run, shutdown.requested)
        shutdown.request("the test wants it")
        await trio.sleep(19.0)
        before = states(tree)
        await trio.sleep(2.0)
        after = states(tree)
        overall = tree.state
        hurried = shutdown.hurried.is_set()
        release.set()

    assert before == [ChildState.READY, ChildState.STOPPING]
    assert after == [ChildState.STOPPED, ChildState.STUCK]
    assert overall is ChildState.STUCK
    assert states(tree) == [ChildState.STOPPED, ChildState.STOPPED]
    assert hurried
    assert stage.log[-1] == (20.0, "one stopped")
    assert "root/two is stuck: cancelled, it has not ended within 15 s" in caplog.text
    assert "in hang_forever" in caplog.text


async def test_a_child_that_is_stuck_at_its_start_ends_the_others(
    autojump_clock: MockClock,
) -> None:
    stage, release, shutdown = Stage(), trio.Event(), make_shutdown()
    tree = supervisor(
        stage.child("one"),
        deaf("two", release, ready=False),
        stage.child("three"),
        shutdown=shutdown,
        intensity=9,
    )
    seen: list[list[ChildState]] = []

    async def free_it() -> None:
        await shutdown.hurried.wait()
        seen.append(states(tree))
        release.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(free_it)
        raised = await run_for(100.0, tree)

    assert raised is not None
    assert isinstance(raised.__cause__, ChildNotReady)
    assert seen == [[ChildState.STOPPED, ChildState.STUCK, ChildState.NEW]]
    assert stage.events == ["one begins", "one stopped"]


async def test_giving_up_stops_the_others_in_order(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", stop_takes=1.0),
        stage.child("two", ends_after=1.0, fails=True),
        stage.child("three", stop_takes=2.0),
    )
    raised = await run_for(50.0, tree)

    assert str(raised) == "two failed"
    assert stage.log[3:] == [(3.0, "three stopped"), (4.0, "one stopped")]
    assert states(tree) == [ChildState.STOPPED, ChildState.FAILED, ChildState.STOPPED]


async def test_a_hard_cancel_while_giving_up_keeps_the_order_and_the_error(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", stop_takes=1.0),
        stage.child("two", stop_takes=4.0),
        stage.child("three", ends_after=1.0, fails=True),
    )
    with pytest.raises(RestartLimitExceeded, match="three failed"):
        await cancel_during(stage, tree, 2.0)

    assert stage.log[3:] == [(5.0, "two stopped"), (6.0, "one stopped")]


async def test_a_hard_cancel_gives_a_child_that_was_cancelled_no_more_time(
    autojump_clock: MockClock,
) -> None:
    stage, release = Stage(), trio.Event()
    tree = supervisor(stage.child("one"), deaf("two", release, ready=False), intensity=1)

    async def observe() -> None:
        await tree.wait_child("two", ChildState.STUCK)
        stage.note("stuck")
        release.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(observe)
        # It was cancelled at 3, and 15 seconds from there are all that it gets.
        await cancel_during(stage, tree, 10.0)

    assert stage.log[1:] == [(18.0, "stuck"), (18.0, "one stopped")]


async def test_a_bug_in_the_supervisor_leaves_no_child_behind(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), stage.child("two"))

    async def fail(*_: object) -> bool:
        raise KeyError("a bug")

    monkeypatch.setattr(_ladder, "stop", fail)
    with trio.fail_after(50.0), pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        await cancel_during(stage, tree, 1.0)

    assert sorted(stage.events[2:]) == ["one cancelled", "two cancelled"]
    assert tree.state is ChildState.FAILED
