"""The steps of start-up, in every order that can be."""

import itertools
import math

import pytest
import trio
from trio.testing import MockClock

from vllmfront.engine.handshake import (
    Roster,
    Step,
    identity_of,
    watch_restarts,
    watch_start_up,
)
from vllmfront.engine.wire import Registration
from vllmfront.errors import ProtocolError, StartupFailed

REGISTRATION = Registration(max_model_len=7)


def take(roster: Roster, rank: int, step: Step) -> Registration | None:
    if step is Step.HELLO:
        roster.hello(rank, now=0.0)
        return None
    if step is Step.READY:
        return roster.ready(rank, now=0.0)
    return roster.register(rank, REGISTRATION, now=0.0)


@pytest.mark.parametrize("order", list(itertools.permutations(Step)))
def test_an_engine_joins_with_its_last_step_and_says_hello_first(order: tuple[Step, ...]) -> None:
    roster = Roster([0])
    if order[0] is not Step.HELLO:
        with pytest.raises(ProtocolError, match="before HELLO"):
            take(roster, 0, order[0])
        return

    joined = [take(roster, 0, step) for step in order]

    assert joined == [None, None, REGISTRATION]
    assert all(roster.missing(step) == [] for step in Step)


def test_a_new_process_starts_anew() -> None:
    roster = Roster([0, 1])
    for step in Step:
        take(roster, 1, step)

    roster.hello(1, now=0.0)

    assert roster.missing(Step.HELLO) == [0]
    assert roster.missing(Step.READY) == [0, 1]
    assert roster.ready(1, now=0.0) is None
    assert roster.register(1, REGISTRATION, now=0.0) == REGISTRATION


def test_without_a_handshake_of_ours_a_registration_is_enough() -> None:
    roster = Roster([3], owns_handshake=False)

    assert roster.register(3, REGISTRATION, now=0.0) == REGISTRATION
    assert roster.steps == (Step.REGISTRATION,)


def test_where_another_process_answers_too_a_registration_tells_of_a_new_engine() -> None:
    roster = Roster([0, 1, 2])
    roster.inherit(0, REGISTRATION)
    roster.hello(2, now=0.0)
    assert [roster.unannounced(rank) for rank in range(3)] == [False, False, False]

    roster.shared = True

    assert [roster.unannounced(rank) for rank in range(3)] == [True, True, False]
    assert roster.missing(Step.READY) == [1, 2]


def test_a_second_ready_means_nothing() -> None:
    roster = Roster([0])
    for step in Step:
        take(roster, 0, step)

    assert roster.ready(0, now=0.0) is None


def test_identities_are_two_bytes() -> None:
    assert [identity_of(rank) for rank in (0, 1, 258, 65535)] == [
        b"\x00\x00",
        b"\x01\x00",
        b"\x02\x01",
        b"\xff\xff",
    ]


def test_who_has_spent_too_long_on_a_step_is_told_once() -> None:
    roster = Roster([0, 1, 2])
    roster.hello(0, now=10.0)
    roster.expect(1, now=12.0)
    roster.ready(0, now=14.0)

    assert roster.next_due(5.0) == 17.0
    assert roster.take_overdue(16.9, 5.0) == {}
    assert roster.take_overdue(19.0, 5.0) == {0: Step.REGISTRATION, 1: Step.HELLO}
    assert roster.take_overdue(99.0, 5.0) == {}
    assert roster.next_due(5.0) == math.inf


def test_nothing_is_awaited_of_one_that_has_joined() -> None:
    roster = Roster([0])
    for step in Step:
        take(roster, 0, step)

    assert roster.next_due(5.0) == math.inf


async def test_the_clock_of_start_up_begins_anew_with_each_step(
    autojump_clock: MockClock,
) -> None:
    roster = Roster([0, 1])

    async def start() -> None:
        for rank in (0, 1):
            for step in Step:
                await trio.sleep(8)
                take(roster, rank, step)

    started = autojump_clock.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await watch_start_up(roster, ready_timeout=10)

    assert autojump_clock.current_time() - started == 48


async def test_who_is_missing_is_named(autojump_clock: MockClock) -> None:
    roster = Roster([0, 1, 2])
    for rank in roster.ranks:
        roster.hello(rank, now=0.0)
    roster.ready(1, now=0.0)
    started = autojump_clock.current_time()

    with pytest.raises(StartupFailed, match="no READY from engine 0, 2 within 5 seconds"):
        await watch_start_up(roster, ready_timeout=5)

    assert autojump_clock.current_time() - started == 5


class Told:
    """Keeps who was said to be overdue, and when."""

    def __init__(self) -> None:
        self.news: list[tuple[float, int, str]] = []

    def engine_overdue(self, rank: int, error: StartupFailed) -> None:
        self.news.append((trio.current_time(), rank, str(error)))


async def test_restarts_have_a_clock_of_their_own(autojump_clock: MockClock) -> None:
    roster, told = Roster([0, 1]), Told()
    started = autojump_clock.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_restarts, roster, 10.0, told)
        await trio.sleep(100)
        roster.expect(1, trio.current_time())
        await trio.sleep(4)
        roster.hello(0, trio.current_time())
        await trio.sleep(96)
        nursery.cancel_scope.cancel()

    moments = [(when - started, rank) for when, rank, _ in told.news]
    assert moments == [(110, 1), (114, 0)]
    assert "no HELLO from engine 1 within 10 seconds" in told.news[0][2]
    assert "no READY from engine 0 within 10 seconds" in told.news[1][2]
