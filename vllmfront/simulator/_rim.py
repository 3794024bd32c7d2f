"""What stands between a simulated engine and its sockets: nothing, unless faults are wanted."""

import enum
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from vllmfront.engine.wire import Abort, Add, Utility
from vllmfront.simulator._messages import Answer, Raw, StepOutput

Spoken = StepOutput | Answer | Raw
"""A message that goes out on a client's output socket."""

Encode = Callable[[Spoken], list[bytes]]


class StartPhase(enum.IntEnum):
    """How far an engine has come with its start."""

    HELLO = 1
    """It has said HELLO."""

    INIT = 2
    """It knows the addresses of the data sockets, and has loaded its model."""

    REGISTERED = 3
    """It has registered on the data sockets, and owes the handshake its READY."""

    READY = 4


class Mortal(Protocol):
    """An engine, as far as a rim acts upon it."""

    def die(self, reason: str = ...) -> None:
        """Send the sentinel of a dead engine core, and end."""

    def vanish(self) -> None:
        """Close all sockets without a word, as a killed process does."""


class Rim:
    """Lets everything pass; a subclass makes the engine fail, and its core knows nothing of it.

    An instance belongs to one life of one rank. All methods are synchronous, and get the time in
    seconds of Trio's clock.
    """

    def attach(self, engine: Mortal) -> None:
        """Belong to *engine* from now on; called once, before anything else."""

    def reached(self, phase: StartPhase, now: float) -> bool:
        """Take note of the start's progress; False ends the engine there, without a word."""
        del phase, now
        return True

    def hears(self, message: Add | Abort | Utility, now: float) -> bool:
        """Return whether the engine gets *message*."""
        del message, now
        return True

    def says(self, message: Spoken, encode: Encode, now: float) -> Sequence[list[bytes]]:
        """Return the messages, as frames, that go out in place of *message*."""
        del now
        return (encode(message),)

    def tick(self, now: float) -> None:
        """Do what is due by the clock; called at each turn of the engine's loop."""

    def wake_at(self) -> float:
        """Return when ``tick`` wants to be called at the latest."""
        return math.inf

    def asleep_until(self) -> float:
        """Return until when the engine's loop stands still; infinity: for ever."""
        return -math.inf


RimFactory = Callable[[int, int], Rim]
"""Makes the rim of a rank's life: ``(rank, life)``, both from 0."""


def no_rim(rank: int, life: int) -> Rim:
    """Return a rim without faults."""
    del rank, life
    return Rim()
