import gc
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from vllmfront.api.http._deadlines import Deadline, Deadlines


@asynccontextmanager
async def running() -> AsyncGenerator[Deadlines, None]:
    deadlines = Deadlines()
    async with trio.open_nursery() as nursery:
        await nursery.start(deadlines.serve)
        yield deadlines
        nursery.cancel_scope.cancel()


class Probe:
    """A deadline that notes when it expired."""

    def __init__(self) -> None:
        self.expired: list[float] = []
        self.deadline = Deadline(lambda: self.expired.append(trio.current_time()))


async def test_deadlines_expire_once_each_at_their_time(autojump_clock: MockClock) -> None:
    probes = [Probe() for _ in range(5)]
    async with running() as deadlines:
        for seconds, probe in zip([3.0, 1.0, 2.0, 1.0, 5.0], probes, strict=True):
            deadlines.set(probe.deadline, seconds)
        await trio.sleep(10)

    assert [probe.expired for probe in probes] == [[3.0], [1.0], [2.0], [1.0], [5.0]]
    assert autojump_clock.current_time() == 10


async def test_a_deadline_may_move_either_way(autojump_clock: MockClock) -> None:
    probe = Probe()
    async with running() as deadlines:
        deadlines.set(probe.deadline, 5)
        await trio.sleep(1)
        deadlines.set(probe.deadline, 1)
        await trio.sleep(0.5)
        deadlines.set(probe.deadline, 8)
        await trio.sleep(20)

        assert probe.expired == [9.5]
        assert len(deadlines) == 0
    assert autojump_clock.current_time() == 21.5


async def test_a_cleared_deadline_does_not_expire_until_set_again(
    autojump_clock: MockClock,
) -> None:
    probe = Probe()
    async with running() as deadlines:
        deadlines.set(probe.deadline, 2)
        probe.deadline.clear()
        await trio.sleep(3)
        deadlines.set(probe.deadline, 2)
        await trio.sleep(3)

    assert probe.expired == [5.0]
    assert autojump_clock.current_time() == 6


async def test_moving_later_adds_nothing_to_the_heap() -> None:
    deadlines, probe = Deadlines(), Probe()
    deadlines.set(probe.deadline, 1)
    for _ in range(1000):
        deadlines.set(probe.deadline, 5)

    assert len(deadlines) == 1


async def test_a_closed_deadline_keeps_nothing_alive() -> None:
    deadlines = Deadlines()
    probe = Probe()
    watch = weakref.ref(probe)
    deadline = probe.deadline
    deadlines.set(deadline, 1000)
    deadline.close()
    del probe
    gc.collect()

    assert watch() is None


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.one_of(st.none(), st.integers(1, 9))),
        max_size=25,
    )
)
def test_any_history_expires_as_a_plain_timer_would(
    steps: list[tuple[int, int, int | None]],
) -> None:
    """Each step lets time pass, then sets or clears one of a few deadlines."""
    expected: list[list[float]] = [[] for _ in range(4)]
    due: dict[int, float] = {}

    def advance(now: float) -> None:
        for index, when in list(due.items()):
            if when <= now:
                expected[index].append(round(when, 2))
                del due[index]

    async def play() -> list[list[float]]:
        probes = [Probe() for _ in range(4)]
        async with running() as deadlines:
            for index, pause, seconds in steps:
                await trio.sleep(pause + 0.25)  # never at the very moment of an expiry
                advance(trio.current_time())
                if seconds is None:
                    probes[index].deadline.clear()
                    due.pop(index, None)
                else:
                    deadlines.set(probes[index].deadline, seconds)
                    due[index] = trio.current_time() + seconds
            await trio.sleep(100)
            advance(trio.current_time())
        return [[round(when, 2) for when in probe.expired] for probe in probes]

    assert trio.run(play, clock=MockClock(autojump_threshold=0)) == expected
