"""How many workers there should be, where an operator leaves that to us: pure.

The first one serves alone as long as it keeps up. Another is started when all that run have been
busy for some time: a worker is one Python process, so one processor is all that it can use. They
are never stopped again: that would cut connections, and an idle one costs its memory alone.
"""

from collections.abc import Mapping

import attrs

BUSY_SHARE = 0.75
"""Of one processor, from which on a worker counts as busy: above that, requests queue for it."""

BUSY_SECONDS = 5.0
"""How long all workers must have been busy for another to be started."""

MOST = 8
"""More than so many workers are not started without being told: each engine has a connection to
each, and reads from all of them."""


def most_workers(processors: float) -> int:
    """Return how many workers there may be on so many processors: one is left to the engines."""
    return max(1, min(MOST, int(processors) - 1))


@attrs.define
class Scaling:
    """Decides when another worker is started; the caller brings the time."""

    most: int
    """Workers that there may be."""

    wanted: int = 1
    _last: dict[int, tuple[float, int]] = attrs.field(factory=dict)
    """When a worker's processor time was looked at last, and what it was."""

    _busy_since: float | None = None

    def look(self, used: Mapping[int, int], now: float) -> bool:
        """Take note of how much processor time workers have used; tell whether more are wanted.

        Args:
            used: Nanoseconds, by the number of the worker, of those that serve.
            now: Monotonic seconds.
        """
        shares = [self._share(number, spent, now) for number, spent in used.items()]
        self._last = {number: (now, spent) for number, spent in used.items()}
        busy = len(shares) >= self.wanted and all(
            share is not None and share >= BUSY_SHARE for share in shares
        )
        if not busy:
            self._busy_since = None
            return False
        if self._busy_since is None:
            self._busy_since = now
        if now - self._busy_since < BUSY_SECONDS or self.wanted >= self.most:
            return False
        self._busy_since = None
        self.wanted += 1
        return True

    def _share(self, number: int, spent: int, now: float) -> float | None:
        before, was = self._last.get(number, (now, spent))
        if now <= before or spent < was:  # seen for the first time, or started anew
            return None
        return (spent - was) / 1e9 / (now - before)
