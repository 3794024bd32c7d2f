"""The gate, the table of loads and the calls that are owed, each by itself."""

import math

from vllmfront.engine.coordinator._counts import CHANGE_INTERVAL, IDLE_INTERVAL, LoadTable
from vllmfront.engine.coordinator._gate import StartGate
from vllmfront.engine.coordinator._rules import WaveState
from vllmfront.engine.coordinator._wakes import REPEAT_AFTER, WakeUps
from vllmfront.engine.wire import EngineLoad

IDLE = EngineLoad(0, 0, 0.0)


def busy(running: int) -> EngineLoad:
    return EngineLoad(0, running, 0.5)


# The gate


def test_the_gate_opens_when_all_have_subscribed() -> None:
    gate = StartGate(3)

    assert [gate.subscribe() for _ in range(3)] == [False, False, True]


def test_whoever_comes_later_is_let_in_at_once() -> None:
    gate = StartGate(2)
    gate.subscribe()
    gate.subscribe()
    gate.unsubscribe()

    assert gate.subscribe()


def test_one_that_comes_and_goes_before_the_others_does_not_count_twice() -> None:
    gate = StartGate(2)
    gate.subscribe()
    gate.unsubscribe()

    assert not gate.subscribe()
    assert gate.subscribe()


def test_after_all_have_left_all_are_awaited_again() -> None:
    gate = StartGate(2)
    gate.subscribe()
    gate.subscribe()
    gate.unsubscribe()
    gate.unsubscribe()

    assert [gate.subscribe(), gate.subscribe()] == [False, True]


def test_fewer_engines_may_be_all_that_are_there() -> None:
    gate = StartGate(3)
    gate.subscribe()
    gate.subscribe()

    assert gate.resize(2)
    assert not gate.resize(4), "it is open already"


# Loads


def test_news_are_published_after_a_while_and_then_seldom() -> None:
    table = LoadTable.of(2)
    assert table.due == -math.inf
    assert table.take(10.0) == (IDLE, IDLE)
    assert table.due == 10.0 + IDLE_INTERVAL

    table.report(1, busy(3))

    assert table.due == 10.0 + CHANGE_INTERVAL
    assert table.take(10.1) == (IDLE, busy(3))
    assert table.due == 10.1 + IDLE_INTERVAL


def test_what_is_published_is_one_step_of_all_engines() -> None:
    table = LoadTable.of(2)
    table.report(0, busy(1), wave=1, step=1)
    table.report(1, busy(1), wave=1, step=1)
    table.report(0, busy(2), wave=1, step=2)

    assert table.take(0.0) == (busy(1), busy(1))
    assert table.due == CHANGE_INTERVAL, "there is more to say"

    table.report(1, busy(2), wave=1, step=2)

    assert table.take(0.1) == (busy(2), busy(2))


def test_the_step_count_begins_anew_with_each_wave() -> None:
    table = LoadTable.of(2)
    table.report(0, busy(1), wave=1, step=9)
    table.report(0, busy(2), wave=2, step=1)

    assert table.take(0.0) == (busy(1), IDLE)
    assert table.take(0.1) == (busy(2), IDLE)


def test_the_load_of_an_engine_that_has_left_goes_with_it() -> None:
    table = LoadTable.of(2)
    table.report(0, busy(1), wave=7, step=3)
    table.forget(0)
    table.report(1, busy(4), wave=0, step=1)

    assert table.loads == (IDLE, busy(4))
    assert table.take(0.0) == (IDLE, IDLE)
    assert table.take(0.1) == (IDLE, busy(4))


def test_a_table_grows_and_shrinks() -> None:
    table = LoadTable.of(2)
    table.report(1, busy(1))
    table.resize(3)

    assert list(table.loads) == [IDLE, busy(1), IDLE]
    assert table.report(2, busy(2))

    table.resize(1)

    assert list(table.loads) == [IDLE]
    assert not table.report(1, busy(1))


# Wake-up calls


def owing(*, wanted: bool = True, held: bool = False, running: bool = False) -> WakeUps:
    wakes = WakeUps()
    wakes.set_wanted(wanted=wanted)
    wakes.hold(held=held)
    wakes.requested(WaveState(4, running=running))
    return wakes


def test_idle_engines_are_called_at_once_and_then_again() -> None:
    wakes = owing()

    assert wakes.take(0.0)
    assert not wakes.take(REPEAT_AFTER / 2)
    assert wakes.due == REPEAT_AFTER
    assert wakes.take(REPEAT_AFTER)


def test_each_request_calls_them_until_they_say_that_they_run() -> None:
    wakes = owing()
    wakes.take(0.0)
    wakes.requested(WaveState(4))
    assert wakes.take(0.0)

    wakes.observed(WaveState(4, running=True))

    assert wakes.due == math.inf
    wakes.requested(WaveState(4, running=True))
    assert not wakes.take(0.0)


def test_the_end_of_that_wave_says_that_they_have_run() -> None:
    wakes = owing()
    wakes.take(0.0)
    wakes.observed(WaveState(4))
    assert wakes.due == REPEAT_AFTER

    wakes.observed(WaveState(5))

    assert wakes.due == math.inf


def test_engines_that_wake_each_other_are_left_alone() -> None:
    assert not owing(wanted=False).take(0.0)
    assert not owing(running=True).take(0.0)


def test_nobody_is_called_while_calls_are_held() -> None:
    wakes = owing(held=True)

    assert wakes.due == math.inf
    assert not wakes.take(100.0)

    wakes.hold(held=False)

    assert wakes.take(100.0)


def test_a_hold_makes_nothing_due_that_was_not_owed() -> None:
    wakes = WakeUps()
    wakes.set_wanted(wanted=True)
    wakes.hold(held=True)
    wakes.hold(held=False)

    assert wakes.due == math.inf


def test_an_engine_that_may_have_missed_a_call_has_it_repeated() -> None:
    wakes = owing()
    wakes.take(0.0)
    wakes.renew()

    assert wakes.take(0.0)

    wakes.observed(WaveState(5))
    wakes.renew()

    assert not wakes.take(0.0)
