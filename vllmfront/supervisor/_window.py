"""How many restarts are too many: pure."""

from collections import deque

import attrs

_LATENESS = 0.05
"""Seconds by which an entry may be older than the period and still count.

Timers are late, each by a millisecond or so: without this, delays that fill the period to its end,
such as one second before each of three restarts in three seconds, would never be too many.
"""


@attrs.define
class RestartWindow:
    """Restarts in a sliding window. The caller brings the time, in seconds that never fall."""

    intensity: int
    """Restarts tolerated within ``period``; 0 gives up at the first failure."""

    period: float
    _entries: deque[tuple[float, tuple[str, ...]]] = attrs.field(factory=deque, init=False)

    def admit(self, now: float, *causes: str) -> bool:
        """Count a restart at *now*, which *causes* were the reason for; False: one too many."""
        self.forget(now)
        self._entries.append((now, causes))
        return len(self._entries) <= self.intensity

    def count(self, now: float, cause: str | None = None) -> int:
        """Count the restarts that *now* still remembers, of one cause or of all; drops none."""
        return sum(
            not self._is_old(time, now) and (cause is None or cause in causes)
            for time, causes in self._entries
        )

    def forget(self, now: float) -> int:
        """Drop what is older than the period; return how many were dropped."""
        before = len(self._entries)
        while self._entries and self._is_old(self._entries[0][0], now):
            self._entries.popleft()
        return before - len(self._entries)

    def _is_old(self, time: float, now: float) -> bool:
        return time < now - self.period - _LATENESS


@attrs.define
class ServiceClock:
    """A clock that can be held: it shows the seconds in which it ran."""

    _lost: float = attrs.field(default=0.0, init=False)
    """Seconds for which it was held so far."""

    _held_at: float | None = attrs.field(default=None, init=False)

    def hold(self, now: float) -> None:
        """Stand still from *now* on, if it does not yet."""
        if self._held_at is None:
            self._held_at = now

    def release(self, now: float) -> None:
        """Go on from *now*, if it does not yet."""
        if self._held_at is not None:
            self._lost += now - self._held_at
            self._held_at = None

    def read(self, now: float) -> float:
        """Return what it shows at *now*."""
        return (now if self._held_at is None else self._held_at) - self._lost
