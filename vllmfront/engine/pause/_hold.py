"""Why generation is held back: a pause that somebody asked for, or an engine that sleeps."""

import enum
from collections.abc import Sequence
from typing import Any

import attrs

from vllmfront.engine._release import release_of

_FIRST_THAT_REFUSES = (0, 33)
"""The first release whose engines know of a pause that requests are refused."""


class PauseMode(enum.StrEnum):
    """What becomes of requests in flight; of two modes the later one here is the wider."""

    KEEP = "keep"
    """They are frozen, and go on afterwards. New ones queue."""

    WAIT = "wait"
    """They run to their end first. New ones are refused."""

    ABORT = "abort"
    """They end at once, with what they have. New ones are refused."""

    def covers(self, other: "PauseMode") -> bool:
        """Tell whether this mode is as wide as *other*, or wider."""
        order = list(PauseMode)
        return order.index(self) >= order.index(other)


PARTS = frozenset({"weights", "kv_cache"})
"""Of an engine's memory, as it lets go of them to sleep."""


class HoldKind(enum.StrEnum):
    """What holds generation back; one of each kind may be there at a time."""

    PAUSE = "paused"
    SLEEP = "sleeping"


@attrs.frozen
class EngineOrder:
    """A utility call that puts an engine into the state of a hold."""

    method: str
    args: Sequence[Any]


@attrs.frozen(kw_only=True)
class Hold:
    """One reason why no request passes; plain data, so that it can be told to other processes."""

    kind: HoldKind
    mode: PauseMode
    since: float
    """When it began, by the event loop's clock."""

    wall: float
    """The same in seconds since 1970."""

    owner: str | None = None
    """Who asked for it, where they said so."""

    clear_cache: bool = True
    """Of a pause: whether cached prefixes are forgotten."""

    level: int = 1
    """Of a sleep: 0 only pauses, 1 keeps the weights in main memory, 2 keeps nothing."""

    asleep: frozenset[str] = frozenset()
    """Of a sleep: the parts that were let go of and are not back yet."""

    @property
    def queues(self) -> bool:
        """Whether new requests wait for its end; else they are refused."""
        return self.kind is HoldKind.PAUSE and self.mode is PauseMode.KEEP

    def snapshot(self) -> "HoldSnapshot":
        """Return how it stands, where nothing but itself knows."""
        return HoldSnapshot(
            kind=self.kind,
            mode=self.mode,
            phase=self.kind.value,
            owner=self.owner,
            since=self.since,
        )

    def orders(self, vllm_version: str | None) -> tuple[EngineOrder, ...]:
        """Return what an engine of that version has to be told to get where the others are."""
        first = self.order(vllm_version)
        back = PARTS - self.asleep
        if self.kind is not HoldKind.SLEEP or self.level == 0 or not back:
            return (first,)
        return first, EngineOrder("wake_up", (sorted(back),))

    def order(self, vllm_version: str | None) -> EngineOrder:
        """Return what an engine of that version is told first."""
        if self.kind is HoldKind.SLEEP:
            return EngineOrder("sleep", (self.level, self.mode.value))
        old = release_of(vllm_version) < _FIRST_THAT_REFUSES
        method = "pause_scheduler" if old else "pause_generation"
        return EngineOrder(method, (self.mode.value, self.clear_cache))


@attrs.frozen(kw_only=True)
class HoldSnapshot:
    """A hold as operators see it."""

    kind: HoldKind
    mode: PauseMode
    phase: str
    """How far it is: being taken, in force, or being lifted."""

    owner: str | None
    since: float
    """By the event loop's clock."""

    lease_left: float | None = None
    """Seconds until it ends unless it is renewed; None: it never does by itself."""
