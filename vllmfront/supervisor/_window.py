"""How many restarts are too many: pure."""

from collections import deque

import attrs


@attrs.define
class RestartWindow:
    """Restarts in a sliding window. The caller brings the time, in monotonic seconds."""

    intensity: int = attrs.field(validator=attrs.validators.ge(0))
    """Restarts tolerated within ``period``; 0 gives up at the first failure."""

    period: float = attrs.field(validator=attrs.validators.gt(0))
    _times: deque[float] = attrs.field(factory=deque, init=False)

    def admit(self, now: float) -> bool:
        """Count a restart at *now*; False: one too many."""
        self._forget(now)
        self._times.append(now)
        return len(self._times) <= self.intensity

    def count(self, now: float) -> int:
        """Count the restarts that *now* still remembers."""
        self._forget(now)
        return len(self._times)

    def _forget(self, now: float) -> None:
        while self._times and self._times[0] < now - self.period:
            self._times.popleft()
