"""The gate: who passes, who queues, who is told what."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from vllmfront.engine.pause import Hold, HoldGate, HoldKind, PauseMode

PAUSE = Hold(kind=HoldKind.PAUSE, mode=PauseMode.KEEP, since=0.0, wall=1000.0)
SLEEP = attrs.evolve(PAUSE, kind=HoldKind.SLEEP, mode=PauseMode.ABORT)


@pytest.mark.parametrize(
    ("holds", "reason"),
    [
        ((), None),
        ((PAUSE,), None),
        ((attrs.evolve(PAUSE, mode=PauseMode.WAIT),), "paused"),
        ((attrs.evolve(PAUSE, mode=PauseMode.ABORT),), "paused"),
        ((SLEEP,), "sleeping"),
        ((PAUSE, SLEEP), "sleeping"),
        ((attrs.evolve(PAUSE, mode=PauseMode.WAIT), SLEEP), "sleeping"),
    ],
)
async def test_what_a_new_request_is_told(holds: tuple[Hold, ...], reason: str | None) -> None:
    gate = HoldGate()
    for hold in holds:
        gate.close(hold)
    refusal = gate.refusal()

    assert gate.closed == bool(holds)
    assert (None if refusal is None else refusal.reason) == reason


async def test_it_opens_when_the_last_hold_ends_and_tells_each_change() -> None:
    gate, seen = HoldGate(), list[bool]()
    gate.on_change(lambda: seen.append(gate.closed))
    gate.close(PAUSE)
    gate.close(SLEEP)
    gate.open(HoldKind.PAUSE)
    gate.open(HoldKind.PAUSE)
    gate.open(HoldKind.SLEEP)

    assert seen == [True, True, True, False]


async def test_when_to_try_again_follows_from_how_long_the_last_one_lasted(
    mock_clock: MockClock,
) -> None:
    gate = HoldGate()

    def retry(after: float) -> float:
        gate.close(attrs.evolve(PAUSE, mode=PauseMode.WAIT, since=trio.current_time()))
        mock_clock.jump(after)
        refusal = gate.refusal()
        assert refusal is not None
        gate.open(HoldKind.PAUSE)
        return refusal.retry_after

    assert retry(20) == 1
    assert retry(8) == pytest.approx(12)
    assert retry(60) == 1


@pytest.mark.parametrize(
    ("version", "method"),
    [("0.32.0", "pause_scheduler"), ("0.33.0", "pause_generation"), (None, "pause_generation")],
)
def test_engines_are_told_in_the_words_of_their_release(version: str | None, method: str) -> None:
    [order] = attrs.evolve(PAUSE, clear_cache=False).orders(version)

    assert (order.method, order.args) == (method, ("keep", False))


def test_modes_are_ordered_by_what_they_end() -> None:
    covered = {mode: [other for other in PauseMode if mode.covers(other)] for mode in PauseMode}

    assert covered == {
        PauseMode.KEEP: [PauseMode.KEEP],
        PauseMode.WAIT: [PauseMode.KEEP, PauseMode.WAIT],
        PauseMode.ABORT: list(PauseMode),
    }
