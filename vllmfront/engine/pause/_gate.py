"""The gate that every request passes on its way to an engine, and every wake-up of ranks."""

import time
from collections.abc import Callable

import trio

from vllmfront.engine.pause._hold import Hold, HoldKind, PauseMode
from vllmfront.errors import GenerationHeld, Reason

LEAST_RETRY = 1.0
"""Seconds after which it is worth trying again where a hold lasts longer than those before, or is
the first: trainers hold generation back for fractions of a second."""

_REASONS = {HoldKind.PAUSE: Reason.PAUSED, HoldKind.SLEEP: Reason.SLEEPING}


class HoldGate:
    """Open, unless something holds generation back. All of it is synchronous.

    It decides nothing: whoever owns a hold closes it and opens it again, in this process or, where
    several serve the same engines, in another that tells this one.
    """

    def __init__(self) -> None:
        self.closed = False
        """Whether no request may be sent to any engine now."""

        self._holds: dict[HoldKind, Hold] = {}
        self._observers: list[Callable[[], None]] = []
        self._last_seconds: dict[HoldKind, float] = {}

    def __repr__(self) -> str:
        return f"<HoldGate {', '.join(kind.value for kind in self._holds) or 'open'}>"

    @property
    def holds(self) -> tuple[Hold, ...]:
        """What holds generation back now."""
        return tuple(self._holds.values())

    @property
    def aborts(self) -> bool:
        """Whether requests that were in flight are to end, instead of going on some time."""
        return any(hold.mode is PauseMode.ABORT for hold in self._holds.values())

    def find(self, kind: HoldKind) -> Hold | None:
        """Return the hold of that kind, if there is one."""
        return self._holds.get(kind)

    def on_change(self, observer: Callable[[], None]) -> None:
        """Call *observer* after each change, also of what holds a gate that stays closed."""
        self._observers.append(observer)

    def close(self, hold: Hold) -> None:
        """Let nothing pass from now on; takes the place of another hold of the same kind."""
        self._holds[hold.kind] = hold
        self._notify()

    def open(self, kind: HoldKind) -> None:
        """Take the hold of that kind away; nothing where there is none."""
        hold = self._holds.pop(kind, None)
        if hold is not None:
            self._last_seconds[kind] = trio.current_time() - hold.since
            self._notify()

    def refusal(self) -> GenerationHeld | None:
        """Return why a new request is refused; None where it passes, or may queue."""
        if not self.closed:
            return None
        for kind in (HoldKind.SLEEP, HoldKind.PAUSE):
            hold = self._holds.get(kind)
            if hold is not None and not hold.queues:
                return self._refusal(hold)
        return None

    def _refusal(self, hold: Hold) -> GenerationHeld:
        seconds = trio.current_time() - hold.since
        by = "" if hold.owner is None else f" by {hold.owner}"
        verb = "paused" if hold.kind is HoldKind.PAUSE else "sent to sleep"
        return GenerationHeld(
            f"Generation was {verb}{by} {seconds:.0f} seconds ago; try again when it goes on.",
            reason=_REASONS[hold.kind],
            mode=hold.mode.value,
            since=hold.wall,
            retry_after=self._retry_after(hold.kind, seconds),
        )

    def _retry_after(self, kind: HoldKind, seconds: float) -> float:
        return max(LEAST_RETRY, self._last_seconds.get(kind, 0.0) - seconds)

    def _notify(self) -> None:
        self.closed = bool(self._holds)
        for observer in self._observers:
            observer()


def wall_of(since: float) -> float:
    """Return the seconds since 1970 of a moment by the event loop's clock."""
    return time.time() - (trio.current_time() - since)
