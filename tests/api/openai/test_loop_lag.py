import logging

import pytest
import trio
from trio.testing import MockClock

from vllmfront.api.openai._loop_lag import CALM_TICKS, LATE_TICKS, TICK, LoopLag


def late(lag: LoopLag, seconds: float, times: int) -> LoopLag:
    for _ in range(times):
        lag.note(seconds)
    return lag


def test_being_late_again_and_again_is_an_overload() -> None:
    assert not late(LoopLag(1.0), 1.1, LATE_TICKS - 1).excessive
    assert late(LoopLag(1.0), 1.1, LATE_TICKS).excessive


def test_a_burst_now_and_then_is_none() -> None:
    lag = LoopLag(1.0)
    for _ in range(20):
        late(lag, 3.0, LATE_TICKS - 1)
        lag.note(0.0)

    assert not lag.excessive


def test_the_limit_itself_is_allowed() -> None:
    assert not late(LoopLag(1.0), 1.0, 10 * LATE_TICKS).excessive


def test_without_a_limit_nothing_is_too_late() -> None:
    lag = late(LoopLag(0.0), 100.0, 10 * LATE_TICKS)

    assert not lag.excessive
    assert lag.value == 100.0


def test_an_overload_ends_with_keeping_up_and_not_with_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    lag = late(LoopLag(1.0), 1.1, LATE_TICKS)
    late(lag, 0.4, CALM_TICKS - 1)
    late(lag, 0.6, 1)
    late(lag, 0.4, CALM_TICKS - 1)
    before = lag.excessive
    lag.note(0.4)

    assert before
    assert not lag.excessive
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "late with its work by 1.1 s, limit 1 s (--max-loop-lag)" in caplog.text


async def test_what_a_look_finds_is_how_much_more_time_has_passed_than_it_slept(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    nursery: trio.Nursery,
) -> None:
    lag, slow = LoopLag(1.0), 0.0

    def clock() -> float:
        return trio.current_time() * (1 + slow)

    await nursery.start(lag.serve, clock)
    await trio.sleep(TICK * 1.5)
    on_time = lag.value
    slow = 20.0
    await trio.sleep(TICK * 0.6)
    jumped = lag.value
    await trio.sleep(TICK * (LATE_TICKS + 1))

    assert on_time == pytest.approx(0.0)
    assert jumped > 1.0
    assert lag.value == pytest.approx(20 * TICK)
    assert lag.excessive
