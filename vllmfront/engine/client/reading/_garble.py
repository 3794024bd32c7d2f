"""When an engine's stream is beyond repair."""

from collections import deque

import attrs

MOST_GARBLED = 16
"""Unreadable messages, in a row or within a minute, that an engine is still served after. A sound
one sends none; but what spoils a few, a bug or a newer field, must not cost all of its requests."""

WINDOW = 60.0
"""Seconds."""


@attrs.define
class GarbleCount:
    """Counts one engine's unreadable messages. Pure: the caller brings the time, in seconds."""

    _times: deque[float] = attrs.field(factory=deque, init=False)
    _in_a_row: int = attrs.field(default=0, init=False)

    def add(self, now: float) -> bool:
        """Count one; return whether that is one too many."""
        self._in_a_row += 1
        while self._times and self._times[0] < now - WINDOW:
            self._times.popleft()
        self._times.append(now)
        return self._in_a_row > MOST_GARBLED or len(self._times) > MOST_GARBLED

    def sound(self) -> None:
        """Take note of a message that could be read."""
        self._in_a_row = 0

    def describe(self) -> str:
        """Say what was too much, for the end of a sentence."""
        if self._in_a_row > MOST_GARBLED:
            return f"sent {self._in_a_row} unreadable messages in a row"
        return f"sent {len(self._times)} unreadable messages within {WINDOW:g} seconds"
