"""One supervisor under a clock that jumps: start, ends and restarts of single children."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

import pytest
import trio
from trio.testing import MockClock

from tests.supervisor.stage import Stage, generations, make_shutdown, run_for, states, supervisor
from vllmfront.errors import FirstStartFailed, RestartLimitExceeded
from vllmfront.supervisor import (
    Backoff,
    ChildFailed,
    ChildNotReady,
    ChildReturned,
    ChildSpec,
    ChildState,
    Event,
    Response,
    Restart,
    RestartPolicy,
    Supervisor,
)

TEMPORARY, TRANSIENT = Restart.TEMPORARY, Restart.TRANSIENT
STARTING, READY, STOPPING = ChildState.STARTING, ChildState.READY, ChildState.STOPPING


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
        stage.child("one"),
        stage.child("two", ready_after=-1.0, ends_after=0.0, fails=True),
        stage.child("three"),
        intensity=9,
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


async def test_a_failure_of_a_temporary_child_leaves_the_first_start_alone(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    extra = stage.child("extra", ready_after=-1.0, ends_after=0.0, fails=True, restart=TEMPORARY)
    tree = supervisor(extra, stage.child("two"))

    assert await run_for(5.0, tree) is None
    assert stage.events == ["extra begins", "two begins", "two stopped"]


async def test_a_child_that_fails_is_restarted_alone_until_it_is_too_often(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one"), stage.child("two", ends_after=1.0, fails=True), intensity=2
    )
    raised = await run_for(100.0, tree)

    assert stage.events == ["one begins", *["two begins"] * 3, "one stopped"]
    assert type(raised) is RestartLimitExceeded
    assert str(raised) == "two failed too often: 2 restarts in 60 s did not help"
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


async def test_a_permanent_child_that_returns_has_failed(autojump_clock: MockClock) -> None:
    raised = await run_for(10.0, supervisor(Stage().child("one", ends_after=1.0)))

    assert raised is not None
    assert isinstance(raised.__cause__, ChildReturned)


async def test_a_permanent_child_that_keeps_returning_is_given_up(
    autojump_clock: MockClock,
) -> None:
    tree = supervisor(Stage().child("one", ends_after=1.0), intensity=3)
    raised = await run_for(100.0, tree)

    assert type(raised) is RestartLimitExceeded
    assert generations(tree) == [4]


async def test_a_permanent_child_that_returns_before_it_is_ready_fails_the_start(
    autojump_clock: MockClock,
) -> None:
    tree = supervisor(Stage().child("one", ready_after=-1.0, ends_after=0.0), intensity=3)
    raised = await run_for(10.0, tree)

    assert isinstance(raised, FirstStartFailed)
    assert isinstance(raised.__cause__, ChildReturned)


async def test_a_child_that_is_not_ready_in_time_is_cancelled(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ready_after=100.0, start_budget=3.0))
    raised = await run_for(200.0, tree)

    assert raised is not None
    assert isinstance(raised.__cause__, ChildNotReady)
    assert stage.log == [(0.0, "one begins"), (3.0, "one cancelled")]


async def test_a_child_that_is_not_ready_in_time_after_a_restart_is_restarted_again(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    child = stage.child(
        "one", ready_after=[0.0, 100.0, 0.0], ends_after=1.0, lives=1, fails=True, start_budget=3.0
    )
    tree = supervisor(child, intensity=2)

    assert await run_for(50.0, tree) is None
    assert stage.times("one begins") == [0.0, 1.0, 4.0]
    assert generations(tree) == [3]


async def test_the_start_budget_ends_with_readiness(autojump_clock: MockClock) -> None:
    stage = Stage()
    await run_for(100.0, supervisor(stage.child("one", ready_after=2.9, start_budget=3.0)))

    assert stage.log[1:] == [(100.0, "one stopped")]


async def test_what_a_late_child_raises_when_cancelled_is_kept_as_the_cause(
    autojump_clock: MockClock,
) -> None:
    async def run(  # noqa: ASYNC128 (it is late)
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("the port is taken")

    raised = await run_for(10.0, supervisor(ChildSpec(name="one", run=run, start_budget=1.0)))

    assert raised is not None
    assert isinstance(raised.__cause__, ChildNotReady)
    assert isinstance(raised.__cause__.__cause__, OSError)


async def test_the_end_of_a_significant_child_ends_the_supervisor(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one"),
        stage.child("job", ends_after=4.0, restart=TRANSIENT, significant=True),
        stage.child("three"),
    )
    with trio.fail_after(50.0):
        await tree.run(trio.Event())

    assert stage.log[3:] == [(4.0, "job returned"), (4.0, "three stopped"), (4.0, "one stopped")]
    assert tree.state is ChildState.STOPPED


async def test_a_failure_in_the_tick_of_a_significant_end_is_told_and_not_answered(
    autojump_clock: MockClock,
) -> None:
    stage, told = Stage(), list[Event]()
    tree = supervisor(
        stage.child("job", ends_after=4.0, restart=TRANSIENT, significant=True),
        stage.child("two", ends_after=4.0, fails=True),
        intensity=5,
        on_event=told.append,
    )
    with trio.fail_after(50.0):
        await tree.run(trio.Event())
    (failed,) = [each for each in told if isinstance(each, ChildFailed)]

    assert failed.response is Response.DROP
    assert states(tree) == [ChildState.STOPPED, ChildState.FAILED]
    assert tree.state is ChildState.STOPPED


async def test_a_significant_child_that_fails_is_restarted_like_any_other(
    autojump_clock: MockClock,
) -> None:
    job = Stage().child(
        "job", ends_after=4.0, fails=True, lives=1, restart=TRANSIENT, significant=True
    )
    tree = supervisor(job, intensity=1)

    assert await run_for(9.0, tree) is None
    assert generations(tree) == [2]


async def test_a_significant_child_that_fails_for_good_fails_the_supervisor(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    job = stage.child("job", ends_after=4.0, fails=True, restart=TEMPORARY, significant=True)
    raised = await run_for(9.0, supervisor(stage.child("one"), job, intensity=5))

    assert str(raised) == "job failed for good"
    assert stage.log[-1] == (4.0, "one stopped")


async def test_the_programs_end_is_no_childs_failure(autojump_clock: MockClock) -> None:
    stage = Stage()

    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await trio.sleep(1.0)
        raise SystemExit(3)

    tree = supervisor(
        stage.child("one"), stage.child("two"), ChildSpec(name="three", run=run), intensity=9
    )
    with pytest.RaisesGroup(SystemExit):
        await tree.run(trio.Event())

    assert stage.events[2:] == ["two stopped", "one stopped"]


async def test_a_group_of_errors_is_one_failure(autojump_clock: MockClock) -> None:
    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 50.0)
            await trio.sleep(1.0)
            raise KeyError("x")

    tree = supervisor(ChildSpec(name="one", run=run))
    raised = await run_for(9.0, tree)

    assert raised is not None
    assert isinstance(raised.__cause__, ExceptionGroup)
    assert tree.snapshot().children[0].last_failure == "KeyError: 'x'"


async def test_it_reports_itself_started_when_all_are_ready(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ready_after=2.0), stage.child("two", ready_after=3.0))
    seen: list[ChildState] = []

    async def observe() -> None:
        seen.extend([await tree.wait_state(state) for state in (STARTING, READY, STOPPING)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(observe)
        stop = trio.Event()
        await nursery.start(tree.run, stop)
        stage.note("started")
        stop.set()

    assert stage.times("started") == [5.0]
    assert seen == [STARTING, READY, STOPPING]


async def test_a_body_that_reports_itself_started_twice_is_a_bug(
    autojump_clock: MockClock,
) -> None:
    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        task_status.started()

    raised = await run_for(1.0, supervisor(ChildSpec(name="one", run=run)))

    assert raised is not None
    assert "started twice" in str(raised.__cause__)


async def test_a_task_status_that_outlives_its_incarnation_says_nothing(
    autojump_clock: MockClock,
) -> None:
    kept: list[trio.TaskStatus[None]] = []

    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        kept.append(task_status)
        if len(kept) == 1:
            task_status.started()
        if len(kept) < 3:
            await trio.sleep(1.0)
            raise RuntimeError
        await stop.wait()

    tree = supervisor(ChildSpec(name="one", run=run), intensity=5)
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(tree.run, stop)
        await trio.sleep(2.5)
        before = states(tree)
        kept[1].started()
        after = states(tree)
        stop.set()

    assert len(kept) == 3
    assert before == after == [STARTING]


async def test_it_can_run_again_with_everything_made_anew(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ends_after=1.0, fails=True, lives=2), intensity=1)
    first = await run_for(10.0, tree)
    second = await run_for(10.0, tree)

    assert first is not None
    assert second is None
    assert generations(tree) == [1]
    assert tree.snapshot().restarts == 0
    assert tree.snapshot().children[0].first_failure is None


async def test_it_does_not_run_twice_at_a_time(autojump_clock: MockClock) -> None:
    tree = supervisor(Stage().child("one"))
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(tree.run, stop)
        with pytest.raises(RuntimeError, match="runs already"):
            await tree.run(stop)
        stop.set()

    assert tree.state is ChildState.STOPPED


async def test_nothing_is_started_once_the_program_is_to_end(autojump_clock: MockClock) -> None:
    stage, shutdown = Stage(), make_shutdown(budget=50.0)
    tree = supervisor(
        stage.child("one"), stage.child("two", ready_after=2.0), shutdown=shutdown, intensity=5
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tree.run, stop := trio.Event())
        shutdown.request("the test wants it")
        await trio.sleep(9.0)
        seen = states(tree), tree.state
        stop.set()

    assert seen == ([ChildState.NEW, ChildState.NEW], STOPPING)
    assert stage.events == []


def test_a_name_that_no_operator_can_type_is_refused() -> None:
    with pytest.raises(ValueError, match="name"):
        ChildSpec(name="No Name", run=supervisor().run)


def test_two_children_of_one_name_are_refused() -> None:
    child = ChildSpec(name="one", run=supervisor().run)

    with pytest.raises(ValueError, match="names of their own"):
        supervisor(child, child)


def test_a_permanent_child_cannot_be_significant() -> None:
    with pytest.raises(ValueError, match="one is permanent"):
        ChildSpec(name="one", run=supervisor().run, significant=True)


async def test_jitter_is_drawn_from_the_standard_source_by_default(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = Supervisor(
        "root",
        [stage.child("one", ends_after=1.0, fails=True, lives=1)],
        RestartPolicy(intensity=1, backoff=Backoff(base=10.0, jitter=0.5)),
        shutdown=make_shutdown(),
    )
    await run_for(30.0, tree)
    _, again = stage.times("one begins")

    assert 6.0 <= again <= 11.0
