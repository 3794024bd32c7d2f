"""Supervisors as children of supervisors, under a clock that jumps."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

import math

import pytest
import trio
from trio.testing import MockClock

from tests.supervisor.stage import STEADY, Stage, deaf, make_shutdown, run_for, states, supervisor
from vllmfront.errors import FirstStartFailed, RestartLimitExceeded
from vllmfront.supervisor import (
    ChildSpec,
    ChildState,
    ChildStuck,
    Event,
    GaveUp,
    Restart,
    Strategy,
)

READY, STARTING, BACKOFF = ChildState.READY, ChildState.STARTING, ChildState.BACKOFF


async def test_a_supervisor_is_a_child_that_is_ready_when_its_children_are(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    inner = supervisor(
        stage.child("one", ready_after=3.0), stage.child("two", ready_after=4.0), name="inner"
    )
    root = supervisor(stage.child("before"), inner.as_child(), stage.child("after"))
    await run_for(20.0, root)

    assert stage.log == [
        (0.0, "before begins"),
        (0.0, "one begins"),
        (3.0, "two begins"),
        (7.0, "after begins"),
        (20.0, "after stopped"),
        (20.0, "two stopped"),
        (20.0, "one stopped"),
        (20.0, "before stopped"),
    ]


async def test_a_handle_is_started_at_once_and_its_children_come_up_behind_it(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    engine = supervisor(
        stage.child("process", ready_after=300.0, start_budget=600.0), name="engine", handle=True
    )
    root = supervisor(engine.as_child(), stage.child("api"))
    seen: list[object] = []
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(root.run, stop)
        seen += [trio.current_time() - stage.begun, root.state, engine.state, states(root)]
        seen += [await engine.wait_state(READY, ChildState.FAILED)]
        seen += [trio.current_time() - stage.begun, engine.state, states(root)]
        stop.set()

    assert seen == [0.0, READY, STARTING, [STARTING, READY], READY, 300.0, READY, [READY, READY]]
    assert stage.events[-2:] == ["api stopped", "process stopped"]


async def test_a_restart_below_a_handle_leaves_the_others_alone(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    process = stage.child(
        "process", ready_after=100.0, start_budget=600.0, ends_after=50.0, fails=True, lives=2
    )
    engine = supervisor(
        process, name="engine", handle=True, intensity=3, period=600.0, backoff=STEADY
    )
    root = supervisor(engine.as_child(), stage.child("api"))
    seen: list[ChildState] = []

    async def observe() -> None:
        seen.extend([await engine.wait_state(state) for state in [READY, BACKOFF, STARTING, READY]])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(observe)
        assert await run_for(1000.0, root) is None

    assert seen == [READY, BACKOFF, STARTING, READY]
    # The delay is twice as long the second time: it was not healthy for a minute.
    assert stage.times("process begins") == [0.0, 151.0, 303.0]
    assert stage.times("api begins") == [0.0]
    assert stage.times("api stopped") == [1000.0]


async def test_a_first_start_that_fails_below_a_handle_is_retried_on_no_level(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    process = stage.child("process", ready_after=-5.0, ends_after=0.0, fails=True)
    engine = supervisor(process, name="engine", handle=True, intensity=5)
    root = supervisor(engine.as_child(), stage.child("api"), intensity=5)
    raised = await run_for(100.0, root)

    assert type(raised) is FirstStartFailed
    assert type(raised.__cause__) is FirstStartFailed
    assert str(raised.__cause__.__cause__) == "process broke"
    assert stage.events == ["process begins", "api begins", "api stopped"]
    assert stage.log[-1] == (5.0, "api stopped")


async def test_a_start_that_fails_after_a_restart_on_a_higher_level_counts_as_a_restart_there(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    process = stage.child(
        "process", ready_after=[0.0, -1.0, 0.0], ends_after=1.0, fails=True, lives=2
    )
    engine = supervisor(process, name="engine", handle=True)
    root = supervisor(engine.as_child(), intensity=2)

    assert await run_for(10.0, root) is None
    assert root.snapshot().children[0].generation == 3
    assert root.snapshot().restarts == 2


async def test_giving_up_below_is_a_failure_above_and_one_error_in_the_end(
    autojump_clock: MockClock,
) -> None:
    stage, told = Stage(), list[Event]()
    inner = supervisor(
        stage.child("one", ends_after=1.0, fails=True),
        name="inner",
        intensity=1,
        on_event=told.append,
    )
    root = supervisor(inner.as_child(), stage.child("other"), intensity=1, on_event=told.append)
    raised = await run_for(100.0, root)

    assert type(raised) is RestartLimitExceeded
    assert type(raised.__cause__) is RestartLimitExceeded
    assert str(raised.__cause__.__cause__) == "one broke"
    # Levels multiply: two lives below, each of two lives above.
    assert stage.times("one begins") == [0.0, 1.0, 2.0, 3.0]
    assert [each.supervisor for each in told if isinstance(each, GaveUp)] == [
        "inner",
        "inner",
        "root",
    ]


async def test_a_supervisor_that_is_restarted_begins_with_a_new_window(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    inner = supervisor(
        stage.child("one", ends_after=1.0, fails=True, lives=3), name="inner", intensity=1
    )
    root = supervisor(inner.as_child(), intensity=1)

    assert await run_for(10.0, root) is None
    assert inner.snapshot().restarts == 1
    assert root.snapshot().restarts == 1


async def test_a_supervisor_that_is_taken_along_stops_in_order_and_comes_back(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    inner = supervisor(
        stage.child("one", stop_takes=1.0), stage.child("two", stop_takes=1.0), name="inner"
    )
    root = supervisor(
        stage.child("failing", ends_after=1.0, fails=True, lives=1),
        inner.as_child(),
        strategy=Strategy.ONE_FOR_ALL,
        intensity=1,
    )
    await run_for(10.0, root)

    assert stage.events[3:8] == [
        "two stopped",
        "one stopped",
        "failing begins",
        "one begins",
        "two begins",
    ]


async def test_it_has_no_budgets_of_its_own(autojump_clock: MockClock) -> None:
    stage = Stage()
    one = stage.child("one", start_budget=10.0, stop_budget=20.0)
    two = stage.child("two", start_budget=30.0, stop_budget=40.0)
    plain = supervisor(one, two, name="plain").as_child()
    handle = supervisor(one, two, name="handle", handle=True).as_child(Restart.TRANSIENT)

    assert plain.start_budget >= 40.0
    assert plain.stop_budget >= 60.0
    assert handle.start_budget == math.inf
    assert handle.restart is Restart.TRANSIENT


async def test_slow_children_below_have_the_time_that_each_may_take(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    inner = supervisor(
        *(stage.child(name, stop_takes=50.0, stop_budget=60.0) for name in ("one", "two")),
        name="inner",
    )
    await run_for(1.0, supervisor(inner.as_child()))

    assert stage.log[2:] == [(51.0, "two stopped"), (101.0, "one stopped")]


async def test_the_programs_deadline_reaches_down(autojump_clock: MockClock) -> None:
    stage, shutdown = Stage(), make_shutdown(budget=10.0, margin=5.0)
    children = [stage.child(name, stop_takes=50.0, stop_budget=60.0) for name in ("one", "two")]
    inner = supervisor(*children, name="inner", shutdown=shutdown)
    root = supervisor(
        inner.as_child(), stage.child("api", stop_takes=9.0, stop_budget=10.0), shutdown=shutdown
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(root.run, shutdown.requested)
        shutdown.request("the test wants it")

    assert stage.log[3:] == [
        (9.0, "api stopped"),
        (15.0, "two cancelled"),
        (15.0, "one cancelled"),
    ]


def slow_to_clean_up(stage: Stage, name: str, seconds: float) -> ChildSpec:
    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(seconds, shield=True):
                await trio.sleep_forever()
            stage.note(f"{name} cleaned up")

    return ChildSpec(name=name, run=run)


async def test_a_supervisor_below_is_not_stuck_while_its_children_clean_up(
    autojump_clock: MockClock,
) -> None:
    stage, told = Stage(), list[Event]()
    shutdown = make_shutdown(budget=0.0, margin=1.0)
    children = [slow_to_clean_up(stage, name, 14.0) for name in ("one", "two")]
    inner = supervisor(*children, name="inner", shutdown=shutdown)
    root = supervisor(inner.as_child(), shutdown=shutdown, on_event=told.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(root.run, shutdown.requested)
        shutdown.request("the test wants it")

    assert stage.log == [(15.0, "two cleaned up"), (29.0, "one cleaned up")]
    assert not any(isinstance(each, ChildStuck) for each in told)


async def test_a_hard_cancel_keeps_the_order_of_the_whole_tree(autojump_clock: MockClock) -> None:
    stage = Stage()
    inner = supervisor(
        stage.child("one", stop_takes=1.0), stage.child("two", stop_takes=1.0), name="inner"
    )
    root = supervisor(stage.child("before"), inner.as_child(), stage.child("after", stop_takes=1.0))
    with trio.move_on_after(1.0):
        await root.run(trio.Event())

    assert stage.log[4:] == [
        (2.0, "after stopped"),
        (3.0, "two stopped"),
        (4.0, "one stopped"),
        (4.0, "before stopped"),
    ]


async def test_what_runs_below_goes_on_until_its_turn_when_the_program_is_to_end(
    autojump_clock: MockClock,
) -> None:
    stage, shutdown = Stage(), make_shutdown(budget=30.0)
    inner = supervisor(
        stage.child("one", ends_after=3.0, fails=True),
        stage.child("two"),
        name="inner",
        intensity=5,
        shutdown=shutdown,
    )
    root = supervisor(
        inner.as_child(), stage.child("api", stop_takes=8.0, stop_budget=30.0), shutdown=shutdown
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(root.run, shutdown.requested)
        await trio.sleep(1.0)
        shutdown.request("the test wants it")

    assert stage.log[3:] == [(9.0, "api stopped"), (9.0, "two stopped")]


async def test_what_is_stuck_below_is_stuck_above(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    stage, release, shutdown = Stage(), trio.Event(), make_shutdown()
    inner = supervisor(deaf("one", release), name="inner", shutdown=shutdown)
    root = supervisor(stage.child("before"), inner.as_child(), shutdown=shutdown)
    async with trio.open_nursery() as nursery:
        await nursery.start(root.run, shutdown.requested)
        shutdown.request("the test wants it")
        await root.wait_child("inner", ChildState.STUCK)
        tree = root.snapshot().children[1].tree
        await root.wait_child("before", ChildState.STOPPED)
        release.set()

    assert tree is not None
    assert [child.state for child in tree.children] == [ChildState.STUCK]
    assert "root/inner is stuck" in caplog.text
    assert caplog.text.count("inner/one is stuck") == 1


async def test_a_significant_child_below_ends_its_supervisor_properly(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    job = stage.child("job", ends_after=3.0, restart=Restart.TRANSIENT, significant=True)
    batch = supervisor(job, name="batch").as_child(Restart.TRANSIENT, significant=True)
    root = supervisor(stage.child("other"), batch)
    with trio.fail_after(50.0):
        await root.run(trio.Event())

    assert stage.log[2:] == [(3.0, "job returned"), (3.0, "other stopped")]


async def test_tasks_are_named_like_the_tree(autojump_clock: MockClock) -> None:
    names: list[str] = []

    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task = trio.lowlevel.current_task()
        names.append(task.name)
        nursery = task.parent_nursery
        assert nursery is not None
        names.append(nursery.parent_task.name)
        task_status.started()
        await stop.wait()

    inner = supervisor(ChildSpec(name="one", run=run), name="inner")
    await run_for(1.0, supervisor(inner.as_child()))

    assert names == ["inner/one", "root/inner"]
