"""The policy under a clock that jumps: no test here takes real time."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

from collections.abc import Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock

from vllmfront.errors import EngineDied, RestartLimitExceeded
from vllmfront.supervisor import (
    ChildNotReady,
    ChildReturned,
    ChildSpec,
    ChildState,
    Restart,
    RestartWindow,
    Shutdown,
    Supervisor,
)


@attrs.define
class Stage:
    """Children that note what happens to them, with the time."""

    log: list[tuple[float, str]] = attrs.field(factory=list)

    def note(self, what: str) -> None:
        self.log.append((trio.current_time(), what))

    def child(  # each knob is one way to behave
        self,
        name: str,
        *,
        ready_after: float = 0.0,
        ends_after: float | None = None,
        fails: bool = False,
        stop_takes: float = 0.0,
        restart: Restart = Restart.PERMANENT,
        start_budget: float = 60.0,
        stop_budget: float = 5.0,
    ) -> ChildSpec:
        async def run(
            stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
        ) -> None:
            self.note(f"{name} begins")
            try:
                await trio.sleep(ready_after)
                task_status.started()
                with trio.move_on_after(float("inf") if ends_after is None else ends_after):
                    await stop.wait()
                    await trio.sleep(stop_takes)
                    self.note(f"{name} stopped")
                    return
                if fails:
                    raise RuntimeError(f"{name} broke")
                self.note(f"{name} returned")
            except trio.Cancelled:
                self.note(f"{name} cancelled")
                raise

        return ChildSpec(
            name=name, run=run, restart=restart, start_budget=start_budget, stop_budget=stop_budget
        )

    @property
    def events(self) -> list[str]:
        return [what for _, what in self.log]


def supervisor(*specs: ChildSpec, intensity: int = 0, period: float = 60.0) -> Supervisor:
    return Supervisor("root", specs, RestartWindow(intensity=intensity, period=period))


async def run_for(
    seconds: float, tree: Supervisor, shutdown: Shutdown | None = None
) -> Sequence[str]:
    """Supervise, ask for the end after *seconds*, and return what the tree raised."""
    shutdown = shutdown or Shutdown(budget=0.0, margin=30.0)
    raised: list[str] = []

    async def supervise() -> None:
        try:
            await tree.supervise(shutdown)
        except RestartLimitExceeded as exc:
            raised.append(f"{exc} <- {exc.__cause__!r}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise)
        await trio.sleep(seconds)
        shutdown.request("the test is over")
    return raised


def states(tree: Supervisor) -> list[ChildState]:
    return [child.state for child in tree.snapshot().children]


async def test_children_start_in_order_and_stop_in_reverse(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ready_after=2.0), stage.child("two", ready_after=1.0))
    begun = trio.current_time()
    await run_for(5.0, tree)

    assert stage.events == ["one begins", "two begins", "two stopped", "one stopped"]
    assert [time - begun for time, _ in stage.log[:2]] == [0.0, 2.0]
    assert states(tree) == [ChildState.STOPPED, ChildState.STOPPED]


async def test_a_failure_at_the_first_start_is_not_retried_and_stops_what_is_up(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one"), stage.child("two", ends_after=0.0, fails=True), intensity=9
    )
    shutdown = Shutdown(budget=0.0, margin=30.0)
    with pytest.raises(RestartLimitExceeded, match="two failed") as caught:
        await tree.supervise(shutdown)

    assert isinstance(caught.value.__cause__, RuntimeError)
    assert stage.events[-1] == "one stopped"
    assert states(tree) == [ChildState.STOPPED, ChildState.FAILED]


async def test_a_child_that_fails_is_restarted_alone_until_it_is_too_often(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one"), stage.child("two", ends_after=1.0, fails=True), intensity=2
    )
    raised = await run_for(100.0, tree)

    assert stage.events == ["one begins", *["two begins"] * 3, "one stopped"]
    assert raised == ["two failed <- RuntimeError('two broke')"]


async def test_failures_that_lie_far_apart_are_restarted_for_ever(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ends_after=10.0, fails=True), intensity=1, period=15.0)
    calm = supervisor(stage.child("one", ends_after=10.0, fails=True), intensity=1, period=5.0)

    assert await run_for(95.0, calm) == []
    assert calm.snapshot().children[0].generation == 10
    assert await run_for(100.0, tree) == ["one failed <- RuntimeError('one broke')"]


@pytest.mark.parametrize(
    ("restart", "fails", "generations"),
    [
        (Restart.PERMANENT, False, 2),
        (Restart.PERMANENT, True, 2),
        (Restart.TRANSIENT, False, 1),
        (Restart.TRANSIENT, True, 2),
        (Restart.TEMPORARY, False, 1),
        (Restart.TEMPORARY, True, 1),
    ],
)
async def test_the_restart_kind_decides(
    autojump_clock: MockClock, restart: Restart, *, fails: bool, generations: int
) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ends_after=1.0, fails=fails, restart=restart), intensity=9)
    raised = await run_for(1.5, tree)

    assert tree.snapshot().children[0].generation == generations
    assert raised == []


async def test_a_permanent_child_that_returns_has_failed(autojump_clock: MockClock) -> None:
    tree = supervisor(Stage().child("one", ends_after=1.0))
    (raised,) = await run_for(10.0, tree)

    assert ChildReturned.__name__ in raised


async def test_a_child_that_is_not_ready_in_time_is_cancelled(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", ready_after=100.0, start_budget=3.0))
    begun = trio.current_time()
    (raised,) = await run_for(200.0, tree)

    assert ChildNotReady.__name__ in raised
    assert [(time - begun, what) for time, what in stage.log][1] == (3.0, "one cancelled")


async def test_the_end_is_wanted_while_a_child_starts(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), stage.child("two", ready_after=100.0))
    shutdown = Shutdown(budget=0.0, margin=30.0)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tree.supervise, shutdown)
        await trio.sleep(1.0)
        shutdown.request("the test wants it")

    # It does not look at the request before it is ready, hence its stop budget passes.
    assert stage.events == ["one begins", "two begins", "two cancelled", "one stopped"]
    assert trio.current_time() - begun == 6.0


async def test_the_stop_budget_of_a_child_holds(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), stage.child("two", stop_takes=100.0, stop_budget=4.0))
    begun = trio.current_time()
    await run_for(1.0, tree)

    assert stage.events[-2:] == ["two cancelled", "one stopped"]
    assert trio.current_time() - begun == 5.0


async def test_the_programs_deadline_holds_for_all_children_together(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", stop_takes=6.0, stop_budget=60.0),
        stage.child("two", stop_takes=6.0, stop_budget=60.0),
    )
    begun = trio.current_time()
    await run_for(1.0, tree, Shutdown(budget=2.0, margin=8.0))

    assert [(time - begun, what) for time, what in stage.log[2:]] == [
        (7.0, "two stopped"),
        (11.0, "one cancelled"),
    ]


async def test_a_second_request_cuts_the_stop_short(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one", stop_takes=50.0, stop_budget=60.0))
    shutdown = Shutdown(budget=40.0, margin=20.0)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(tree.supervise, shutdown)
        shutdown.request("first")
        await trio.sleep(2.0)
        shutdown.request("second")

    assert stage.log[-1] == (begun + 5.0, "one cancelled")


async def test_a_hard_cancel_keeps_the_order(autojump_clock: MockClock) -> None:
    stage = Stage()
    tree = supervisor(stage.child("one"), stage.child("two", stop_takes=1.0))
    with trio.move_on_after(1.0):
        await tree.supervise(Shutdown(budget=0.0, margin=30.0))

    assert stage.events[2:] == ["two stopped", "one stopped"]


async def test_a_child_that_fails_while_stopping_is_reported(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await stop.wait()
        raise RuntimeError("at the last moment")

    tree = supervisor(ChildSpec(name="one", run=run))
    await run_for(1.0, tree)

    assert "one failed while stopping" in caplog.text
    assert tree.snapshot().children[0].last_failure == "at the last moment"


async def test_two_children_that_fail_in_the_same_tick_are_both_restarted(
    autojump_clock: MockClock,
) -> None:
    stage = Stage()
    tree = supervisor(
        stage.child("one", ends_after=1.0, fails=True),
        stage.child("two", ends_after=1.0, fails=True),
        intensity=2,
    )
    raised = await run_for(1.5, tree)

    assert raised == []
    assert [child.generation for child in tree.snapshot().children] == [2, 2]
    assert tree.snapshot().restarts == 2


def broken_child(error: Exception) -> ChildSpec:
    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        task_status.started()
        await trio.lowlevel.checkpoint()
        raise error

    return ChildSpec(name="one", run=run, restart=Restart.TEMPORARY)


@pytest.mark.parametrize(
    ("error", "level"), [(KeyError("bug"), "ERROR"), (EngineDied("on purpose"), "DEBUG")]
)
async def test_only_a_bug_is_logged_with_its_traceback(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, error: Exception, level: str
) -> None:
    caplog.set_level("DEBUG")
    await run_for(1.0, supervisor(broken_child(error)))
    (record,) = [each for each in caplog.records if each.getMessage() == "one failed"]

    assert record.levelname == level
    assert record.exc_info is not None
    assert record.exc_info[1] is error


async def test_a_restart_says_which_one_it_is(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    tree = supervisor(Stage().child("one", ends_after=1.0, fails=True), intensity=9)
    await run_for(2.5, tree)

    assert [each.getMessage() for each in caplog.records if "restarting" in each.msg] == [
        "restarting one at once, attempt 2 (restart 1 of at most 9 in 60 s): one broke",
        "restarting one at once, attempt 3 (restart 2 of at most 9 in 60 s): one broke",
    ]


def deaf_child(release: trio.Event, *, ready: bool) -> ChildSpec:
    """Make a child that cannot be cancelled, because a task of its own cannot."""

    async def hang_forever() -> None:
        with trio.CancelScope(shield=True):
            await release.wait()

    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        if ready:
            task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang_forever)
            await stop.wait()

    return ChildSpec(name="two", run=run, start_budget=3.0, stop_budget=5.0)


async def test_a_child_that_cannot_be_cancelled_is_stuck_and_shown(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    stage, release = Stage(), trio.Event()
    tree = supervisor(stage.child("one"), deaf_child(release, ready=True))
    shutdown = Shutdown(budget=0.0, margin=30.0)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(tree.supervise, shutdown)
        shutdown.request("the test wants it")
        await trio.sleep(19.0)
        before = states(tree)
        await trio.sleep(2.0)
        after = states(tree)
        hurried = shutdown.hurried.is_set()
        release.set()

    assert before == [ChildState.READY, ChildState.STOPPING]
    assert after == [ChildState.STOPPED, ChildState.STUCK]
    assert states(tree) == [ChildState.STOPPED, ChildState.STOPPED]
    assert hurried
    assert stage.log[-1] == (begun + 20.0, "one stopped")
    assert "two is stuck" in caplog.text
    assert "in hang_forever" in caplog.text
    assert "cancelling two, which did not stop within 5 s" in caplog.text


async def test_a_child_that_is_stuck_at_its_start_ends_the_others(
    autojump_clock: MockClock,
) -> None:
    stage, release = Stage(), trio.Event()
    tree = supervisor(stage.child("one"), deaf_child(release, ready=False), stage.child("three"))
    shutdown = Shutdown(budget=0.0, margin=30.0)

    async def free_it() -> None:
        await shutdown.hurried.wait()
        assert states(tree) == [ChildState.STOPPED, ChildState.STUCK, ChildState.NEW]
        release.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(free_it)
        with pytest.raises(RestartLimitExceeded, match="two failed") as caught:
            await tree.supervise(shutdown)

    assert isinstance(caught.value.__cause__, ChildNotReady)
    assert stage.events == ["one begins", "one stopped"]


def test_a_name_that_no_operator_can_type_is_refused() -> None:
    with pytest.raises(ValueError, match="name"):
        ChildSpec(name="No Name", run=Stage().child("x").run)
