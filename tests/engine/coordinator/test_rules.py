"""What a coordinator does about each message: the whole table."""

import itertools

import pytest

from vllmfront.engine.coordinator import Event, Outcome, WakeUp, WaveState, decide, needs_waking
from vllmfront.engine.coordinator._rules import EFFECTS, Age
from vllmfront.engine.wire import Registration

IDLE, RUNNING = WaveState(4), WaveState(4, running=True)
ENGINE = 1


def test_every_case_has_an_effect() -> None:
    assert set(EFFECTS) == set(itertools.product(Event, Age, (False, True)))


def started(wave: int) -> Outcome:
    return Outcome(WaveState(wave, running=True), WakeUp(wave, ENGINE), announce=True)


def ended(wave: int) -> Outcome:
    return Outcome(WaveState(wave + 1), announce=True)


CASES = {
    # An engine says that it has started a wave.
    (IDLE, Event.STARTED, 3): Outcome(IDLE),
    (IDLE, Event.STARTED, 4): started(4),
    (IDLE, Event.STARTED, 5): started(5),
    (RUNNING, Event.STARTED, 3): Outcome(RUNNING),
    (RUNNING, Event.STARTED, 4): Outcome(RUNNING),
    (RUNNING, Event.STARTED, 5): started(5),
    # Rank 0 says that all are idle.
    (IDLE, Event.ENDED, 3): Outcome(IDLE),
    (IDLE, Event.ENDED, 4): ended(4),
    (IDLE, Event.ENDED, 5): ended(5),
    (RUNNING, Event.ENDED, 3): Outcome(RUNNING),
    (RUNNING, Event.ENDED, 4): ended(4),
    (RUNNING, Event.ENDED, 5): ended(5),
    # A frontend says that it has sent a request to idle engines. That they run is for them to say.
    (IDLE, Event.REQUESTED, 3): Outcome(IDLE, WakeUp(4, None)),
    (IDLE, Event.REQUESTED, 4): Outcome(IDLE, WakeUp(4, ENGINE)),
    (IDLE, Event.REQUESTED, 5): Outcome(WaveState(5), WakeUp(5, None), announce=True),
    (RUNNING, Event.REQUESTED, 3): Outcome(RUNNING),
    (RUNNING, Event.REQUESTED, 4): Outcome(RUNNING),
    (RUNNING, Event.REQUESTED, 5): Outcome(WaveState(5), WakeUp(5, None), announce=True),
}


@pytest.mark.parametrize(("state", "event", "wave"), CASES)
def test_what_follows(state: WaveState, event: Event, wave: int) -> None:
    assert decide(state, event, wave, ENGINE) == CASES[state, event, wave]


@pytest.mark.parametrize(
    ("version", "engines", "expected"),
    [
        ("0.32.0", 2, True),
        ("0.32.1", 8, True),
        ("0.33.0", 2, False),  # they wake each other
        ("0.32.0", 1, False),  # dense, whatever their number
        (None, 2, False),
        ("0.32.0", None, False),
    ],
)
def test_who_needs_waking(version: str | None, engines: int | None, *, expected: bool) -> None:
    registration = Registration(max_model_len=8, vllm_version=version, data_parallel_size=engines)

    assert needs_waking(registration) is expected
