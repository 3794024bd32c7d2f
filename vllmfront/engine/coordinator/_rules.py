"""What a coordinator does about each message, as a table. Pure.

Engines of a mixture of experts step together: all of them run, or all are idle, and what they run
between two idle times is a *wave*. Waves are counted. Every engine, the coordinator and every
frontend hold the number of the present one, or of the next where the engines are idle. They may
be behind each other, since all of them learn of changes by message: a request may meet an engine
whose wave has just ended.

Only engines know whether they run. A coordinator believes them alone: that it has woken them is no
sign that they run, since paused engines ignore that.
"""

import enum

import attrs

from vllmfront.engine._release import release_of
from vllmfront.engine.wire import Registration


class Event(enum.Enum):
    """What a coordinator is told about a wave."""

    STARTED = enum.auto()
    """An engine has begun to run, and the others have to join it."""

    ENDED = enum.auto()
    """All engines have become idle."""

    REQUESTED = enum.auto()
    """A frontend has sent a request, and believes that the engines are idle."""


class Age(enum.Enum):
    """How the wave that a message is about relates to the coordinator's."""

    PAST = enum.auto()
    PRESENT = enum.auto()
    FUTURE = enum.auto()


class Effect(enum.Enum):
    """What a message leads to."""

    NOTHING = enum.auto()
    START = enum.auto()
    """That wave runs: all others are woken, frontends are told."""

    END = enum.auto()
    """That wave is over, the next one is due: frontends are told."""

    WAKE = enum.auto()
    """All but the engine that has the request are woken; they will say whether they run."""

    WAKE_ALL = enum.auto()
    """As ``WAKE``, but nobody is left out."""


@attrs.frozen
class WaveState:
    """What a coordinator, or a frontend, believes."""

    wave: int = 0
    running: bool = False


@attrs.frozen
class WakeUp:
    """A message to all engines but one."""

    wave: int
    left_out: int | None
    """The index of the one that knows already."""


@attrs.frozen
class Outcome:
    """A message's consequences."""

    state: WaveState
    wake_up: WakeUp | None = None
    announce: bool = False
    """Whether frontends are told of the new state."""


EFFECTS = {
    # An engine that is behind will be woken into the present wave by the others.
    (Event.STARTED, Age.PAST, False): Effect.NOTHING,
    (Event.STARTED, Age.PAST, True): Effect.NOTHING,
    (Event.STARTED, Age.PRESENT, False): Effect.START,
    # It comes twice: from the engine that was woken by a request, and from rank 0.
    (Event.STARTED, Age.PRESENT, True): Effect.NOTHING,
    (Event.STARTED, Age.FUTURE, False): Effect.START,
    # The end of the wave before is still on its way, or was lost.
    (Event.STARTED, Age.FUTURE, True): Effect.START,
    (Event.ENDED, Age.PAST, False): Effect.NOTHING,
    (Event.ENDED, Age.PAST, True): Effect.NOTHING,
    # A wave of one step ends before anybody says that it has begun.
    (Event.ENDED, Age.PRESENT, False): Effect.END,
    (Event.ENDED, Age.PRESENT, True): Effect.END,
    (Event.ENDED, Age.FUTURE, False): Effect.END,
    (Event.ENDED, Age.FUTURE, True): Effect.END,
    # The engine that got the request may be idle in the present wave, or in the past one.
    (Event.REQUESTED, Age.PAST, False): Effect.WAKE_ALL,
    (Event.REQUESTED, Age.PRESENT, False): Effect.WAKE,
    # We are new, and the frontend knows more than we do.
    (Event.REQUESTED, Age.FUTURE, False): Effect.WAKE_ALL,
    # The request meets a wave that runs; or one that has ended, and then the engine says so.
    (Event.REQUESTED, Age.PAST, True): Effect.NOTHING,
    (Event.REQUESTED, Age.PRESENT, True): Effect.NOTHING,
    (Event.REQUESTED, Age.FUTURE, True): Effect.WAKE_ALL,
}
"""By event, age of its wave, and whether the engines are believed to run."""


def decide(state: WaveState, event: Event, wave: int, engine: int | None = None) -> Outcome:
    """Return what follows from a message about *wave* that came from, or is about, *engine*."""
    age = _age(wave, state.wave)
    match EFFECTS[event, age, state.running]:
        case Effect.NOTHING:
            return Outcome(state)
        case Effect.START:
            return Outcome(WaveState(wave, running=True), WakeUp(wave, engine), announce=True)
        case Effect.END:
            return Outcome(WaveState(wave + 1, running=False), announce=True)
        case Effect.WAKE:
            return Outcome(state, WakeUp(state.wave, engine))
        case Effect.WAKE_ALL:
            present = max(wave, state.wave)
            known = state if present == state.wave else WaveState(present, running=False)
            return Outcome(known, WakeUp(present, None), announce=known is not state)


def _age(wave: int, present: int) -> Age:
    if wave == present:
        return Age.PRESENT
    return Age.PAST if wave < present else Age.FUTURE


_FIRST_THAT_TELLS = (0, 33)
"""The first release whose idle engines tell others of a request for the present wave."""


def needs_waking(registration: Registration) -> bool:
    """Tell whether engines like this one have to be woken when one of them gets a request.

    Dense ones, which need no company, say that they are the only one.
    """
    engines = registration.data_parallel_size
    silent = release_of(registration.vllm_version) < _FIRST_THAT_TELLS
    return silent and engines is not None and engines > 1
