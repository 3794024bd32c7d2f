"""The steps of start-up, in every order that can be."""

import itertools

import pytest
import trio
from trio.testing import MockClock

from vllmfront.engine.handshake import Roster, Step, identity_of, watch_start_up
from vllmfront.engine.wire import Registration
from vllmfront.errors import ProtocolError, StartupFailed

REGISTRATION = Registration(max_model_len=7)


def take(roster: Roster, rank: int, step: Step) -> Registration | None:
    if step is Step.HELLO:
        roster.hello(rank)
        return None
    return roster.ready(rank) if step is Step.READY else roster.register(rank, REGISTRATION)


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

    roster.hello(1)

    assert roster.missing(Step.HELLO) == [0]
    assert roster.missing(Step.READY) == [0, 1]
    assert roster.ready(1) is None
    assert roster.register(1, REGISTRATION) == REGISTRATION


def test_without_a_handshake_of_ours_a_registration_is_enough() -> None:
    roster = Roster([3], owns_handshake=False)

    assert roster.register(3, REGISTRATION) == REGISTRATION
    assert roster.steps == (Step.REGISTRATION,)


def test_where_another_process_answers_too_a_registration_tells_of_a_new_engine() -> None:
    roster = Roster([0, 1, 2])
    roster.inherit(0, REGISTRATION)
    roster.hello(2)
    assert [roster.unannounced(rank) for rank in range(3)] == [False, False, False]

    roster.shared = True

    assert [roster.unannounced(rank) for rank in range(3)] == [True, True, False]
    assert roster.missing(Step.READY) == [1, 2]


def test_a_second_ready_means_nothing() -> None:
    roster = Roster([0])
    for step in Step:
        take(roster, 0, step)

    assert roster.ready(0) is None


def test_identities_are_two_bytes() -> None:
    assert [identity_of(rank) for rank in (0, 1, 258, 65535)] == [
        b"\x00\x00",
        b"\x01\x00",
        b"\x02\x01",
        b"\xff\xff",
    ]


async def test_each_step_has_its_own_time(autojump_clock: MockClock) -> None:
    roster = Roster([0, 1])

    async def start() -> None:
        for step in Step:
            await trio.sleep(8)
            for rank in (0, 1):
                take(roster, rank, step)

    started = autojump_clock.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
        await watch_start_up(roster, ready_timeout=10)

    assert autojump_clock.current_time() - started == 24


async def test_who_is_missing_is_named(autojump_clock: MockClock) -> None:
    roster = Roster([0, 1, 2])
    for rank in roster.ranks:
        roster.hello(rank)
    roster.ready(1)
    started = autojump_clock.current_time()

    with pytest.raises(StartupFailed, match="no READY from engine 0, 2 within 5 seconds"):
        await watch_start_up(roster, ready_timeout=5)

    assert autojump_clock.current_time() - started == 5
