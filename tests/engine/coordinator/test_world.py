"""No request hangs, whatever arrives when."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.coordinator._world import STEP_SECONDS, World

VERSIONS = ("0.32.0", "0.33.0")
LONG = 30.0


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["own", "external"])
def world(request: pytest.FixtureRequest, version: str) -> World:
    return World(version, 3, external=request.param)


def test_the_first_request_wakes_all(world: World) -> None:
    world.add("a", 1, tokens=20)
    world.settle(LONG)

    assert world.hung() is None
    assert world.coordinator.state.wave == 1


def test_without_a_wake_up_call_a_request_to_old_engines_hangs() -> None:
    world = World("0.32.0", 2)
    world.hold(held=True)
    world.add("a", 1, tokens=20)
    world.settle(LONG)

    assert world.hung() is not None

    world.hold(held=False)
    world.settle(LONG)

    assert world.hung() is None


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 9])
def test_a_request_may_meet_the_end_of_a_wave_at_any_moment(
    version: str, rank: int, tokens: int
) -> None:
    for delay in range(2 * tokens + 4):
        world = World(version, 3)
        world.add("a", 0, tokens=tokens)
        for _ in range(delay):
            world.settle(STEP_SECONDS / 2)
        # What the coordinator does not know yet, it learns after the request has arrived.
        world.add("b", rank, tokens=3)
        while ("request", rank) in world.channels:
            world.deliver(("request", rank))
        world.settle(LONG)

        assert world.hung() is None, delay


def test_a_request_that_is_aborted_at_once_keeps_nobody_waiting(world: World) -> None:
    world.add("a", 1, tokens=20)
    world.abort("a")
    world.settle(LONG)

    assert world.hung() is None
    call = world.call("is_sleeping")
    world.settle(LONG)
    assert world.answers(call) == [False] * 3


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_what_was_queued_in_a_pause_runs_after_it(world: World, mode: str) -> None:
    world.add("before", 1, tokens=9)
    world.settle(STEP_SECONDS * 2)
    pause = world.call("pause_scheduler", mode, False)
    world.hold(held=True)
    world.settle(LONG)
    assert world.answers(pause) == [None] * 3

    world.add("queued", 2, tokens=9)
    world.settle(LONG)
    assert "queued" in world.open

    resume = world.call("resume_scheduler")
    world.settle(LONG)
    world.hold(held=False)
    world.settle(LONG)

    assert world.answers(resume) == [None] * 3
    assert world.hung() is None


def test_the_first_request_after_a_pause_of_idle_engines_runs(world: World) -> None:
    for number in range(3):
        world.hold(held=True)
        world.call("pause_scheduler", "keep", False)
        world.settle(LONG)
        world.call("resume_scheduler")
        world.settle(LONG)
        world.hold(held=False)
        world.add(f"r{number}", number, tokens=9)
        world.settle(LONG)

        assert world.hung() is None


def test_a_pause_that_one_rank_has_not_heard_of_stays_pending(world: World) -> None:
    pause = world.call("pause_scheduler", "keep", False)
    world.deliver(("request", 0))
    world.deliver(("request", 1))
    world.advance(LONG)
    assert world.answers(pause) == []

    world.settle(LONG)

    assert world.answers(pause) == [None] * 3


def test_new_ranks_begin_where_the_coordinator_is(world: World) -> None:
    for number in range(3):
        world.add(f"a{number}", number, tokens=9)
        world.settle(LONG)
        world.add(f"b{number}", number, tokens=99)
        world.settle(STEP_SECONDS * 3)
        world.restart_ranks()
        world.add(f"c{number}", number, tokens=9)
        world.settle(LONG)

        assert world.hung() is None


def test_a_rank_that_missed_a_call_gets_another_when_it_is_back(world: World) -> None:
    world.add("a", 1, tokens=20)
    while "report" not in {kind for kind, _ in world.channels}:
        for channel in list(world.channels):
            if channel[0] != "wake":
                world.deliver(channel)
        world.advance(STEP_SECONDS)
    world.reconnect(2)
    world.settle(LONG)

    assert world.hung() is None


@pytest.mark.parametrize("lost", range(3))
@pytest.mark.parametrize("deliveries", range(4))
def test_a_rank_that_was_away_as_a_wave_began_joins_it(
    world: World, lost: int, deliveries: int
) -> None:
    """Its connections break between the request and the call, and its own word may be lost."""
    world.add("a", 1, tokens=4)
    for _ in range(deliveries):
        if world.channels:
            world.deliver(next(iter(world.channels)))
    world.reconnect(lost)
    world.settle(LONG)

    assert world.hung() is None
    assert not world.open


class Interleavings(RuleBasedStateMachine):
    """Requests, aborts, pauses, losses, and messages that arrive in any order of channels."""

    world: World
    paused: bool
    pausing: bool

    @initialize(version=st.sampled_from(VERSIONS), ranks=st.integers(2, 3), external=st.booleans())
    def begin(self, version: str, ranks: int, *, external: bool) -> None:
        self.world = World(version, ranks, external=external)
        self.paused = False
        self.count = 0

    @rule(rank=st.integers(0, 2), tokens=st.sampled_from([1, 2, 4, 9]))
    def send(self, rank: int, tokens: int) -> None:
        self.count += 1
        self.world.add(f"r{self.count}", rank % len(self.world.cores), tokens)

    @precondition(lambda self: self.world.open)
    @rule(which=st.integers(0, 99))
    def abort(self, which: int) -> None:
        self.world.abort(list(self.world.open)[which % len(self.world.open)])

    @precondition(lambda self: self.world.channels)
    @rule(which=st.integers(0, 99))
    def deliver(self, which: int) -> None:
        channels = list(self.world.channels)
        self.world.deliver(channels[which % len(channels)])

    @rule(steps=st.integers(1, 8))
    def wait(self, steps: int) -> None:
        self.world.advance(steps * STEP_SECONDS / 2)

    @rule(rank=st.integers(0, 2))
    def reconnect(self, rank: int) -> None:
        self.world.reconnect(rank % len(self.world.cores))

    @rule()
    def restart(self) -> None:
        self.world.restart_ranks()
        self.world.hold(held=False)
        self.paused = False

    @precondition(lambda self: not self.paused)
    @rule(mode=st.sampled_from(["keep", "wait"]))
    def pause(self, mode: str) -> None:
        self.world.hold(held=True)
        self.world.call("pause_scheduler", mode, False)
        self.paused = True

    @precondition(lambda self: self.paused)
    @rule()
    def resume(self) -> None:
        self.world.settle(LONG)
        call = self.world.call("resume_scheduler")
        self.world.settle(LONG)
        assert self.world.answers(call) == [None] * len(self.world.cores)
        self.world.hold(held=False)
        self.paused = False

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        if self.paused:
            self.resume()
        self.world.settle(LONG)
        assert self.world.hung() is None
        for rank in range(len(self.world.cores)):
            self.send(rank, tokens=4)
            self.world.settle(LONG)
            assert self.world.hung() is None


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
