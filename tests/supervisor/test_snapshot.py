"""What operators see, and what is told and logged: under a clock that jumps."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.supervisor.stage import STEADY, Stage, deaf, make_shutdown, run_for, supervisor
from vllmfront.errors import EngineDied
from vllmfront.supervisor import (
    ChildFailed,
    ChildReady,
    ChildSnapshot,
    ChildSpec,
    ChildState,
    ChildStuck,
    Event,
    GaveUp,
    Response,
    Restart,
    Strategy,
    Supervisor,
    SupervisorSnapshot,
)


async def test_a_snapshot_before_the_start_shows_what_will_be() -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), intensity=3, strategy=Strategy.REST_FOR_ONE)

    assert tree.snapshot() == SupervisorSnapshot(
        name="root",
        state=ChildState.NEW,
        since=None,
        strategy=Strategy.REST_FOR_ONE,
        restarts=0,
        intensity=3,
        period=60.0,
        next_try=None,
        children=(
            ChildSnapshot(
                name="one",
                state=ChildState.NEW,
                generation=0,
                since=None,
                restarts=0,
                next_try=None,
                first_failure=None,
                last_failure=None,
            ),
        ),
    )
    assert repr(tree) == "<Supervisor root NEW: one NEW>"


async def test_a_snapshot_shows_the_whole_tree(autojump_clock: MockClock) -> None:
    stage = Stage()
    process = stage.child("process", ends_after=1.0, fails=True)
    engine = supervisor(
        process,
        name="engine",
        handle=True,
        intensity=2,
        backoff=attrs.evolve(STEADY, base=20.0, factor=1.0),
    )
    root = supervisor(engine.as_child(), stage.child("api"))
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(root.run, stop)
        await trio.sleep(10.0)
        shown = root.snapshot()
        text = repr(root)
        stop.set()

    inner = SupervisorSnapshot(
        name="engine",
        state=ChildState.BACKOFF,
        since=stage.begun + 1.0,
        strategy=Strategy.ONE_FOR_ONE,
        restarts=1,
        intensity=2,
        period=60.0,
        next_try=stage.begun + 21.0,
        children=(
            ChildSnapshot(
                name="process",
                state=ChildState.BACKOFF,
                generation=1,
                since=stage.begun + 1.0,
                restarts=1,
                next_try=stage.begun + 21.0,
                first_failure="RuntimeError: process broke",
                last_failure="RuntimeError: process broke",
            ),
        ),
    )
    assert shown.state is ChildState.READY
    assert shown.children[0] == ChildSnapshot(
        name="engine",
        state=ChildState.BACKOFF,
        generation=1,
        since=stage.begun + 1.0,
        restarts=0,
        next_try=stage.begun + 21.0,
        first_failure=None,
        last_failure=None,
        tree=inner,
    )
    assert text == "<Supervisor root READY: engine READY, api READY>"


async def test_the_first_failure_stays_beside_the_last(autojump_clock: MockClock) -> None:
    errors = [OSError("the disk is full"), EngineDied("died"), EngineDied("died again")]

    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await trio.sleep(1.0)
        raise errors.pop(0)

    tree = supervisor(ChildSpec(name="one", run=run), intensity=2)
    await run_for(9.0, tree)
    (child,) = tree.snapshot().children

    assert child.first_failure == "OSError: the disk is full"
    assert child.last_failure == "died again"


async def tell(seconds: float, *specs: ChildSpec, intensity: int = 1) -> list[Event]:
    told: list[Event] = []
    tree = supervisor(*specs, intensity=intensity, backoff=STEADY, on_event=told.append)
    await run_for(seconds, tree)
    return told


def failing(error: Exception, restart: Restart = Restart.PERMANENT) -> ChildSpec:
    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await trio.sleep(1.0)
        raise error

    return ChildSpec(name="one", run=run, restart=restart)


async def test_its_owner_is_told_what_happens(autojump_clock: MockClock) -> None:
    error = EngineDied("died:\n  | last words")
    told = await tell(9.0, failing(error))
    failed = ChildFailed(
        supervisor="root",
        child="one",
        generation=1,
        error=error,
        text="died:\n  | last words",
        response=Response.RESTART,
        delay=1.0,
        restarts=1,
        intensity=1,
        period=60.0,
    )

    reason = "one failed too often: 1 restart in 60 s did not help"
    assert told == [
        ChildReady(supervisor="root", child="one", generation=1, took=0.0),
        failed,
        ChildReady(supervisor="root", child="one", generation=2, took=0.0),
        attrs.evolve(failed, generation=2, response=Response.GIVE_UP, delay=None, restarts=2),
        GaveUp(supervisor="root", reason=reason, causes=(error,)),
    ]
    assert failed.summary == "died:"


async def test_it_is_told_how_long_a_start_took(autojump_clock: MockClock) -> None:
    (ready,) = await tell(9.0, Stage().child("one", ready_after=3.5))

    assert ready == ChildReady(supervisor="root", child="one", generation=1, took=3.5)


async def test_it_is_told_what_is_stuck(autojump_clock: MockClock) -> None:
    release, shutdown, told = trio.Event(), make_shutdown(), list[Event]()
    tree = supervisor(deaf("one", release), shutdown=shutdown, on_event=told.append)
    async with trio.open_nursery() as nursery:
        await nursery.start(tree.run, shutdown.requested)
        shutdown.request("the test wants it")
        await tree.wait_state(ChildState.STUCK)
        release.set()

    (stuck,) = [each for each in told if isinstance(each, ChildStuck)]
    assert "hang_forever" in stuck.stack
    assert stuck.budget == 15.0


async def test_an_owner_that_fails_does_no_harm(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: Event) -> None:
        raise KeyError(event)

    tree = supervisor(failing(EngineDied("died")), intensity=1, on_event=fail)

    assert await run_for(1.5, tree) is None
    assert "whoever watches it failed at ChildFailed" in caplog.text


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, bool]]:
    return [
        (each.levelname, each.getMessage(), each.exc_info is not None) for each in caplog.records
    ]


DIED, BUG = EngineDied("died:\n  | last words"), KeyError("bug")
RESTARTED = "root/one failed and is restarted in 1 s, attempt 2 (restart 1 of at most 1 in 60 s): "
LEFT = "root/one failed; it is not restarted, the others go on without it: "
GAVE_UP = "root/one failed, and root gives up: "


@pytest.mark.parametrize(
    ("child", "intensity", "expected"),
    [
        (
            failing(DIED),
            1,
            [
                ("WARNING", RESTARTED + str(DIED), False),
                ("INFO", "root/one is ready, 0 s after attempt 2 began", False),
                ("ERROR", GAVE_UP + "died:", False),
            ],
        ),
        (failing(DIED, Restart.TRANSIENT), 0, [("ERROR", GAVE_UP + "died:", False)]),
        (failing(BUG), 0, [("ERROR", GAVE_UP + "KeyError: 'bug'", True)]),
        (failing(DIED, Restart.TEMPORARY), 5, [("WARNING", LEFT + str(DIED), False)]),
        (failing(BUG, Restart.TEMPORARY), 5, [("ERROR", LEFT + "KeyError: 'bug'", True)]),
    ],
)
async def test_each_failure_is_logged_once_with_what_is_done_about_it(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    child: ChildSpec,
    intensity: int,
    expected: list[tuple[str, str, bool]],
) -> None:
    caplog.set_level("INFO")
    await tell(9.0, child, intensity=intensity)

    assert logged(caplog) == expected


async def test_a_restart_without_delay_is_told_as_such(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    await run_for(1.5, supervisor(failing(DIED), intensity=1))

    assert caplog.records[0].getMessage().startswith("root/one failed and is restarted at once")


async def test_failures_at_the_programs_end_say_so(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    shutdown = make_shutdown(budget=50.0)
    tree: Supervisor = supervisor(failing(DIED), intensity=1, shutdown=shutdown)
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(tree.run, stop)
        shutdown.request("the test wants it")
        await trio.sleep(2.0)
        stop.set()

    assert "root/one failed; it is not restarted, since root is about to end: died:" in caplog.text


async def test_a_child_is_awaited_by_the_value_of_its_state(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), stage.child("two", ready_after=5.0))
    seen: list[tuple[float, ChildState]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tree.run, stop := trio.Event())
        for state in (ChildState.STARTING, ChildState.READY, ChildState.READY):
            found = await tree.wait_child("two", state, ChildState.FAILED)
            seen.append((trio.current_time() - stage.begun, found))
        stop.set()

    assert seen == [
        (0.0, ChildState.STARTING),
        (5.0, ChildState.READY),
        (5.0, ChildState.READY),
    ]
