"""Restarts under a clock that jumps: who, in which order, and when not."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.supervisor.stage import (
    STEADY,
    Stage,
    deaf,
    generations,
    make_shutdown,
    run_for,
    states,
    supervisor,
)
from vllmfront.errors import FirstStartFailed, RestartLimitExceeded
from vllmfront.supervisor import (
    ChildCannotEnd,
    ChildSpec,
    ChildState,
    Event,
    Restart,
    RestartDropped,
    Strategy,
)

ONE_FOR_ONE, ONE_FOR_ALL, REST_FOR_ONE = Strategy


def trio_of(stage: Stage, middle: ChildSpec) -> tuple[ChildSpec, ...]:
    """Put a child between two that are well."""
    return (stage.child("first"), middle, stage.child("last"))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (ONE_FOR_ONE, ["middle begins"]),
        (REST_FOR_ONE, ["last stopped", "middle begins", "last begins"]),
        (
            ONE_FOR_ALL,
            ["last stopped", "first stopped", "first begins", "middle begins", "last begins"],
        ),
    ],
)
async def test_the_strategy_decides_who_is_taken_along_and_in_which_order(
    autojump_clock: MockClock, strategy: Strategy, expected: list[str]
) -> None:
    stage = Stage()
    middle = stage.child("middle", ends_after=1.0, fails=True, lives=1)
    tree = supervisor(*trio_of(stage, middle), intensity=1, strategy=strategy)
    raised = await run_for(5.0, tree)

    assert raised is None
    assert stage.events[3 : 3 + len(expected)] == expected
    assert stage.events[3 + len(expected) :] == ["last stopped", "middle stopped", "first stopped"]
    assert tree.snapshot().restarts == 1


@pytest.mark.parametrize("strategy", [ONE_FOR_ALL, REST_FOR_ONE])
async def test_those_taken_along_start_when_the_one_before_is_ready(
    autojump_clock: MockClock, strategy: Strategy
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ready_after=3.0, ends_after=20.0, fails=True, lives=1),
        stage.child("two", ready_after=4.0, stop_takes=2.0),
        strategy=strategy,
        intensity=1,
        backoff=STEADY,
    )
    await run_for(100.0, tree)

    # It fails at 23, is due at 24, but the other takes until 25 to stop.
    assert stage.times("one begins") == [0.0, 25.0]
    assert stage.times("two begins") == [3.0, 28.0]


async def test_a_restart_of_one_does_not_wait_for_another(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("slow", ready_after=[0.0, 50.0], ends_after=1.0, fails=True, lives=1),
        stage.child("fast", ends_after=2.0, fails=True, lives=1),
        intensity=5,
    )
    await run_for(20.0, tree)

    assert stage.times("slow begins") == [0.0, 1.0]
    assert stage.times("fast begins") == [0.0, 2.0]


async def test_temporary_children_that_were_taken_along_stay_away(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True, lives=1),
        stage.child("extra", restart=Restart.TEMPORARY),
        stage.child("three"),
        strategy=ONE_FOR_ALL,
        intensity=1,
    )
    await run_for(5.0, tree)

    assert generations(tree) == [2, 1, 2]
    assert stage.events.count("extra stopped") == 1


async def test_a_transient_child_that_was_done_does_its_work_anew_when_taken_along(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=5.0, fails=True, lives=1),
        stage.child("load", ends_after=1.0, restart=Restart.TRANSIENT),
        strategy=REST_FOR_ONE,
        intensity=1,
    )
    await run_for(20.0, tree)

    assert stage.times("load returned") == [1.0, 6.0]


async def test_a_failure_of_a_temporary_child_takes_nobody_along(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    extra = stage.child("extra", ends_after=1.0, fails=True, restart=Restart.TEMPORARY)
    tree = supervisor(stage.child("one"), extra, strategy=ONE_FOR_ALL)

    assert await run_for(5.0, tree) is None
    assert generations(tree) == [1, 1]
    assert states(tree) == [ChildState.STOPPED, ChildState.FAILED]


async def test_a_waiting_supervisor_starts_others_meanwhile(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True, lives=1),
        stage.child("two", ends_after=1.5, fails=True, lives=1),
        intensity=2,
        backoff=attrs.evolve(STEADY, base=10.0),
    )
    await run_for(30.0, tree)

    assert stage.times("one begins") == [0.0, 11.0]
    assert stage.times("two begins") == [0.0, 11.5]


async def test_one_that_cannot_be_taken_along_ends_the_supervisor(
    autojump_clock: MockClock,
) -> None:
    stage, release, shutdown = Stage(), trio.Event(), make_shutdown()
    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True),
        deaf("two", release),
        stage.child("three"),
        strategy=ONE_FOR_ALL,
        intensity=9,
        shutdown=shutdown,
    )

    async def free_it() -> None:
        await shutdown.hurried.wait()
        stage.note("hurried")
        release.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(free_it)
        with pytest.raises(RestartLimitExceeded, match="two cannot be ended") as caught:
            await tree.run(trio.Event())

    assert [type(cause) for cause in caught.value.causes] == [RuntimeError, ChildCannotEnd]
    assert stage.times("hurried") == [21.0]
    assert generations(tree) == [1, 1, 1]


async def test_a_restart_that_waits_is_dropped_when_the_program_is_to_end(
    autojump_clock: MockClock,
) -> None:
    stage, shutdown, told = Stage(), make_shutdown(budget=100.0), list[Event]()
    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True),
        stage.child("two"),
        intensity=2,
        backoff=attrs.evolve(STEADY, base=10.0),
        shutdown=shutdown,
        on_event=told.append,
    )
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(tree.run, stop)
        await trio.sleep(2.0)
        shutdown.request("the test wants it")
        await trio.sleep(20.0)
        seen = states(tree), tree.state, tree.snapshot().next_try
        stop.set()

    assert seen == ([ChildState.STOPPED, ChildState.READY], ChildState.STOPPING, None)
    assert RestartDropped(supervisor="root", child="one", generation=1) in told
    assert stage.times("one begins") == [0.0]


async def test_a_failure_when_the_program_is_to_end_is_not_answered(
    autojump_clock: MockClock,
) -> None:
    stage, shutdown = Stage(), make_shutdown(budget=100.0)
    tree = supervisor(
        stage.child("one", ends_after=5.0, fails=True),
        stage.child("two"),
        intensity=9,
        strategy=ONE_FOR_ALL,
        shutdown=shutdown,
    )
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(tree.run, stop)
        shutdown.request("the test wants it")
        await trio.sleep(20.0)
        seen = states(tree)
        stop.set()

    assert seen == [ChildState.FAILED, ChildState.READY]
    assert tree.state is ChildState.STOPPED


async def test_a_failed_first_start_counts_as_such_until_all_have_been_up(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=10.0, fails=True),
        stage.child("two", ready_after=10.0),
        intensity=9,
    )
    raised = await run_for(50.0, tree)

    assert type(raised) is FirstStartFailed


async def test_each_incarnation_gets_everything_new(autojump_clock: MockClock) -> None:
    stops: list[trio.Event] = []
    statuses: list[trio.TaskStatus[None]] = []
    tasks: list[trio.lowlevel.Task] = []

    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        stops.append(stop)
        statuses.append(task_status)
        tasks.append(trio.lowlevel.current_task())
        task_status.started()
        await trio.sleep(1.0)
        raise RuntimeError

    await run_for(9.0, supervisor(ChildSpec(name="one", run=run), intensity=2))

    assert [len(set(map(id, each))) for each in (stops, statuses, tasks)] == [3, 3, 3]
