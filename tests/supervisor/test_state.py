"""Each arrow of the table is taken by some child in some life, and no other arrow can be."""

# ruff: noqa: ARG001 - a clock is asked for because of its effect

from collections.abc import Awaitable, Callable
from itertools import product

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.supervisor.stage import STEADY, Stage, deaf, make_shutdown, run_for, supervisor
from vllmfront.supervisor import ChildState, Restart, Strategy
from vllmfront.supervisor._child import Child
from vllmfront.supervisor._level import Level
from vllmfront.supervisor._state import TRANSITIONS, IllegalTransition, check_transition, overall

S = ChildState
Arrow = tuple[ChildState, ChildState]
ARROWS = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}


def test_the_table_has_a_row_for_each_state() -> None:
    assert set(TRANSITIONS) == set(ChildState)


@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in product(S, S) if pair not in ARROWS]
)
def test_no_child_takes_a_step_that_the_table_lacks(before: ChildState, after: ChildState) -> None:
    with pytest.raises(IllegalTransition, match=f"from {before.name} to {after.name}"):
        check_transition(before, after)


async def test_the_table_is_enforced(autojump_clock: MockClock) -> None:
    child = Child(Stage().child("one"), Level(S.FAILED), lambda: None)

    with pytest.raises(IllegalTransition):
        child.enter(S.STARTING)
    assert child.state is S.FAILED


@attrs.define
class Lives:
    """Scenarios, each of which takes some arrows."""

    stage: Stage
    release: trio.Event = attrs.field(factory=trio.Event)

    async def stopped_when_ready(self) -> None:
        await run_for(1.0, supervisor(self.stage.child("one")))

    async def stopped_while_starting(self) -> None:
        await run_for(1.0, supervisor(self.stage.child("one", ready_after=50.0)))

    async def restarted_when_ready(self) -> None:
        child = self.stage.child("one", ends_after=1.0, fails=True, lives=1)
        await run_for(2.0, supervisor(child, intensity=1))

    async def restarted_while_starting(self) -> None:
        child = self.stage.child("one", ready_after=[0.0, -1.0, 0.0], ends_after=1.0, lives=2)
        await run_for(9.0, supervisor(child, intensity=2))

    async def fails_when_ready(self) -> None:
        child = self.stage.child("one", ends_after=1.0, fails=True)
        await run_for(2.0, supervisor(child))

    async def fails_while_starting(self) -> None:
        child = self.stage.child("one", ready_after=-1.0, ends_after=0.0, fails=True)
        await run_for(2.0, supervisor(child))

    async def fails_to_be_ready(self) -> None:
        child = self.stage.child("one", ready_after=50.0, start_budget=1.0)
        await run_for(2.0, supervisor(child))

    async def done_when_ready(self) -> None:
        child = self.stage.child("one", ends_after=1.0, restart=Restart.TRANSIENT)
        await run_for(2.0, supervisor(child))

    async def done_while_starting(self) -> None:
        child = self.stage.child("one", ready_after=-1.0, ends_after=0.0, restart=Restart.TRANSIENT)
        await run_for(2.0, supervisor(child))

    async def stopped_in_backoff(self) -> None:
        child = self.stage.child("one", ends_after=1.0, fails=True)
        await run_for(1.5, supervisor(child, intensity=1, backoff=STEADY))

    async def taken_along(self) -> None:
        done = self.stage.child("done", ends_after=0.1, restart=Restart.TRANSIENT)
        ready = self.stage.child("ready")
        failing = self.stage.child("failing", ends_after=1.0, fails=True, lives=1)
        tree = supervisor(done, ready, failing, intensity=1, strategy=Strategy.ONE_FOR_ALL)
        await run_for(3.0, tree)

    async def stuck(self) -> None:
        shutdown = make_shutdown()
        tree = supervisor(deaf("one", self.release), shutdown=shutdown)
        async with trio.open_nursery() as nursery:
            await nursery.start(tree.run, shutdown.requested)
            shutdown.request("the test wants it")
            assert await tree.wait_child("one", S.STUCK) is S.STUCK
            self.release.set()


LIVES: dict[Arrow, Callable[[Lives], Awaitable[None]]] = {
    (S.NEW, S.STARTING): Lives.stopped_when_ready,
    (S.STARTING, S.READY): Lives.stopped_when_ready,
    (S.STARTING, S.STOPPING): Lives.stopped_while_starting,
    (S.STARTING, S.BACKOFF): Lives.restarted_while_starting,
    (S.STARTING, S.STOPPED): Lives.done_while_starting,
    (S.STARTING, S.FAILED): Lives.fails_while_starting,
    (S.READY, S.STOPPING): Lives.stopped_when_ready,
    (S.READY, S.BACKOFF): Lives.restarted_when_ready,
    (S.READY, S.STOPPED): Lives.done_when_ready,
    (S.READY, S.FAILED): Lives.fails_when_ready,
    (S.BACKOFF, S.STARTING): Lives.restarted_when_ready,
    (S.BACKOFF, S.STOPPED): Lives.stopped_in_backoff,
    (S.STOPPING, S.STOPPED): Lives.stopped_when_ready,
    (S.STOPPING, S.BACKOFF): Lives.taken_along,
    (S.STOPPING, S.FAILED): Lives.fails_to_be_ready,
    (S.STOPPING, S.STUCK): Lives.stuck,
    (S.STOPPED, S.BACKOFF): Lives.taken_along,
    (S.STUCK, S.STOPPED): Lives.stuck,
}


def test_there_is_a_life_for_each_arrow() -> None:
    assert set(LIVES) == ARROWS


@pytest.mark.parametrize("arrow", LIVES, ids=lambda arrow: f"{arrow[0].name}-{arrow[1].name}")
async def test_the_arrow_is_taken(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, arrow: Arrow
) -> None:
    taken: list[Arrow] = []
    enter = Child.enter

    def record(child: Child, state: ChildState, due: float | None = None) -> None:
        before = child.state
        enter(child, state, due)
        taken.append((before, state))

    monkeypatch.setattr(Child, "enter", record)
    with trio.fail_after(1000.0):
        await LIVES[arrow](Lives(Stage()))

    assert arrow in taken


@pytest.mark.parametrize(
    ("children", "expected"),
    [
        ([], S.READY),
        ([S.READY, S.READY], S.READY),
        ([S.READY, S.STOPPED, S.FAILED], S.READY),
        ([S.READY, S.NEW], S.STARTING),
        ([S.READY, S.STARTING], S.STARTING),
        ([S.READY, S.BACKOFF], S.BACKOFF),
        ([S.READY, S.STOPPING], S.BACKOFF),
        ([S.BACKOFF, S.STARTING], S.STARTING),
        ([S.STARTING, S.STUCK], S.STUCK),
    ],
)
def test_the_state_of_a_supervisor_says_what_is_missing(
    children: list[ChildState], expected: ChildState
) -> None:
    assert overall(children) is expected
