"""What can go wrong with an engine, as data."""

import enum
import math

import attrs
from attrs import validators

from vllmfront.simulator import StartPhase


class FaultKind(enum.Enum):
    """What an engine does wrong."""

    CRASH = "crash"
    """Closes all sockets without a word, as a killed process does."""

    DIE = "die"
    """Sends the sentinel of a dead engine core, and ends."""

    HANG = "hang"
    """Stands still for ever: alive, connected, and silent."""

    STALL = "stall"
    """Stands still for some seconds, then goes on where it was."""

    SLOW = "slow"
    """Takes so many seconds longer for each of the next messages."""

    DROP = "drop"
    """The next messages are never sent; what they say is lost."""

    DUPLICATE = "duplicate"
    """The next messages are sent twice."""

    REORDER = "reorder"
    """Each of the next messages changes places with the one after it."""

    GARBLE = "garble"
    """The next messages are cut short, or begin with a byte that begins nothing."""

    LIE = "lie"
    """The next statistics are false: no request at all, or a million of them."""

    LOSE = "lose"
    """The next requests are never heard of; the engine does not know that they exist."""

    MUTE = "mute"
    """The next utility calls are never answered."""


class Moment(enum.Enum):
    """What is counted until a fault strikes."""

    START = "start"
    """The phases of the handshake: 1 said HELLO, 2 loaded, 3 registered but not READY."""

    REQUEST = "request"
    """Requests that arrive at the rank, from 1."""

    OUTPUT = "output"
    """Messages with outputs of requests that the rank sends, from 1; some carry many requests."""

    CALL = "call"
    """Utility calls that arrive at the rank, from 1."""

    TIME = "time"
    """Seconds since the rank was ready: the only moment that depends on the machine's speed."""


DEADLY = frozenset({FaultKind.CRASH, FaultKind.DIE, FaultKind.HANG})
"""No other fault of that life comes after these."""

TAMPERING = frozenset(
    {FaultKind.DROP, FaultKind.DUPLICATE, FaultKind.REORDER, FaultKind.GARBLE, FaultKind.LOSE}
)
"""Faults that change what is said about requests, as no working engine and network do."""

AT_START = frozenset({FaultKind.CRASH, FaultKind.HANG, FaultKind.STALL})
"""Faults that an engine can have before it is ready."""


@attrs.frozen(kw_only=True)
class Fault:
    """One fault of one rank, and when it strikes. Counts begin anew with each life of a rank."""

    kind: FaultKind
    on: Moment = Moment.OUTPUT
    at: float = attrs.field(default=1, validator=validators.gt(0))
    """Which one of what *on* counts; for ``Moment.TIME`` seconds."""

    rank: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(0)))
    """None: every rank, each by its own count."""

    life: int | None = attrs.field(default=None, validator=validators.optional(validators.ge(0)))
    """Which start of the rank, counted from 0; None: each."""

    count: int = attrs.field(default=1, validator=validators.ge(1))
    """How many messages, requests or calls it concerns, where it concerns any."""

    seconds: float = attrs.field(default=0.0, validator=[validators.ge(0), validators.lt(math.inf)])
    """For how long: of a stall, or more for each message of a slow engine."""

    def __attrs_post_init__(self) -> None:
        if self.on is Moment.START:
            if self.kind not in AT_START:
                raise ValueError(f"an engine that starts cannot {self.kind.value}")
            if self.at not in (StartPhase.HELLO, StartPhase.INIT, StartPhase.REGISTERED):
                raise ValueError(f"the phases of a start are 1, 2 and 3, not {self.at}")
        elif self.on is not Moment.TIME and self.at != int(self.at):
            raise ValueError(f"{self.on.value}s are counted in whole numbers, not {self.at}")
        if self.kind in (FaultKind.STALL, FaultKind.SLOW) and not self.seconds:
            raise ValueError(f"a fault of kind {self.kind.value} needs seconds")

    def __str__(self) -> str:
        who = "every rank" if self.rank is None else f"rank {self.rank}"
        which = "" if self.life is None else f", life {self.life}"
        return f"{who}{which}: {self.describe()}"

    def describe(self) -> str:
        """Say what happens when, not to whom."""
        number = f"{self.at:g} s" if self.on is Moment.TIME else f"{self.on.value} {self.at:g}"
        more = f" x{self.count}" if self.count > 1 else ""
        length = f" for {self.seconds:g} s" if self.seconds else ""
        return f"{self.kind.value}{more}{length} at {number}"

    def concerns(self, rank: int, life: int) -> bool:
        return self.rank in (None, rank) and self.life in (None, life)
