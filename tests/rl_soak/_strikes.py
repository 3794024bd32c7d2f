"""Faults that strike an engine at a named order, whichever life of it hears that."""

from pathlib import Path

import msgspec

from vllmfront.testing import Fault, FaultKind, Moment

START, REQUEST = "start", "request"
"""Moments that are no orders: a phase of the engine's start, and the next request."""

STALL_SECONDS = 0.6


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that is in store."""

    at: str
    """The order, as the engine knows it, or START or REQUEST."""

    kind: str
    """A value of ``FaultKind``."""

    done: bool = False
    """Whether the order is carried out first, so that only its answer is concerned."""

    phase: int = 1
    """Of a start: 1 said HELLO, 2 loaded, 3 registered."""

    def fault(self, moment: Moment, at: float) -> Fault:
        kind = FaultKind(self.kind)
        seconds = STALL_SECONDS if kind in (FaultKind.STALL, FaultKind.SLOW) else 0.0
        return Fault(kind=kind, on=moment, at=at, seconds=seconds)


class StrikeBox:
    """The strikes in store for one rank: a file, so that they outlive the lives of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, strikes: list[Strike]) -> None:
        """Have these in store, and no others."""
        beside = self._path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(strikes))
        beside.replace(self._path)

    def waiting(self) -> list[Strike]:
        if not self._path.exists():
            return []
        return msgspec.json.decode(self._path.read_bytes(), type=list[Strike])

    def take(self, at: str) -> Strike | None:
        """Return the first that is due *at* this, and forget it."""
        strikes = self.waiting()
        for strike in strikes:
            if strike.at == at:
                strikes.remove(strike)
                self.put(strikes)
                return strike
        return None
