"""The tables of states: every pair, allowed or not, and what observers of a level see."""

import itertools
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from vllmfront.engine.client.membership._state import (
    EngineState,
    RankEvent,
    RankState,
    StateLevel,
    client_state,
    next_rank_state,
)
from vllmfront.errors import EngineDied, EngineStalled

LOADING, PREPARING, READY, STALLED, DEAD = RankState
ALLOWED = {
    (LOADING, RankEvent.STARTED): LOADING,
    (LOADING, RankEvent.JOINED): PREPARING,
    (LOADING, RankEvent.LOST): DEAD,
    (PREPARING, RankEvent.PREPARED): READY,
    (PREPARING, RankEvent.LOST): DEAD,
    (READY, RankEvent.SILENT): STALLED,
    (READY, RankEvent.LOST): DEAD,
    (STALLED, RankEvent.HEARD): READY,
    (STALLED, RankEvent.LOST): DEAD,
    (DEAD, RankEvent.STARTED): LOADING,
    (DEAD, RankEvent.JOINED): PREPARING,
    (DEAD, RankEvent.RETURNED): PREPARING,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RankState, RankEvent)))
def test_every_pair_of_a_ranks_table(state: RankState, event: RankEvent) -> None:
    expected = ALLOWED.get((state, event))
    if expected is None:
        with pytest.raises(ValueError, match=f"{state.value} cannot be {event.value}"):
            next_rank_state(state, event)
        return

    assert next_rank_state(state, event) is expected


def test_messages_can_be_sent_to_those_that_have_joined() -> None:
    assert [state for state in RankState if state.connected] == [PREPARING, READY, STALLED]


@pytest.mark.parametrize(
    ("ranks", "before", "after"),
    [
        ([LOADING], EngineState.LOADING, EngineState.RECOVERING),
        ([DEAD], EngineState.LOADING, EngineState.RECOVERING),
        ([READY], EngineState.READY, EngineState.READY),
        ([READY, LOADING], EngineState.LOADING, EngineState.READY),
        ([PREPARING], EngineState.LOADING, EngineState.RECOVERING),
        ([READY, PREPARING], EngineState.LOADING, EngineState.READY),
        ([READY, DEAD], EngineState.READY, EngineState.READY),
        ([READY, STALLED], EngineState.READY, EngineState.READY),
        ([STALLED], EngineState.LOADING, EngineState.STALLED),
        ([STALLED, DEAD], EngineState.LOADING, EngineState.STALLED),
        ([STALLED, LOADING], EngineState.LOADING, EngineState.STALLED),
        ([DEAD, LOADING], EngineState.LOADING, EngineState.RECOVERING),
    ],
)
def test_a_client_before_and_after_it_has_served(
    ranks: Sequence[RankState], before: EngineState, after: EngineState
) -> None:
    assert client_state(ranks, has_served=False) is before
    assert client_state(ranks, has_served=True) is after
    assert client_state(ranks, has_served=True, given_up=True) is EngineState.FAILED


async def test_the_first_cause_sticks_until_all_is_well() -> None:
    level = StateLevel()
    first, second, last = EngineDied("first"), EngineDied("second"), EngineDied("last")
    level.set(EngineState.RECOVERING, first)
    level.set(EngineState.RECOVERING, second)
    assert level.error is first

    level.set(EngineState.READY)
    level.set(EngineState.RECOVERING, second)
    assert level.error is second

    level.set(EngineState.FAILED, last)
    assert level.error is last


async def test_a_loss_is_told_rather_than_the_stall_before_it() -> None:
    level = StateLevel()
    stall, loss = EngineStalled("silent for 60 seconds"), EngineDied("killed")
    level.set(EngineState.READY)
    level.set(EngineState.STALLED, stall)
    assert level.error is stall

    level.set(EngineState.RECOVERING, loss)
    level.set(EngineState.RECOVERING, EngineDied("not connected any more"))
    assert level.error is loss


async def test_a_change_wakes_who_waits_for_it_and_has_a_time(
    autojump_clock: MockClock,
) -> None:
    level, began = StateLevel(), autojump_clock.current_time()
    seen: list[object] = []

    async def watch() -> None:
        seen.append(await level.wait(lambda state: state is EngineState.FAILED))
        seen.append(str(await level.wait_lost()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.sleep(2)
        level.set(EngineState.READY)
        await trio.sleep(3)
        level.set(EngineState.READY)
        assert level.since == began + 2
        level.set(EngineState.FAILED, EngineDied("given up"))
        await trio.sleep(1)
        level.set(EngineState.FAILED, None, EngineDied("no rank is left"))

    assert seen == [EngineState.FAILED, "no rank is left"]
    assert level.since == began + 5
