"""Load of engine ranks, as they report it and as we know better since.

A report is out of date as soon as it is sent: what was sent to the rank since counts as waiting
there, what ended since counts as gone. So a burst between two reports spreads evenly.
"""

from collections.abc import Mapping

WAITING_WEIGHT = 3
"""A waiting request counts this much more than a running one."""


class RankLoad:
    """The load of one rank. ``in_flight`` is ours; the rest is what the rank said last."""

    __slots__ = ("_ended", "_running", "_sent", "_waiting", "in_flight")

    def __init__(self) -> None:
        self.in_flight = 0
        self._running = 0
        self._waiting = 0
        # Since the last report:
        self._sent = 0
        self._ended = 0

    def __repr__(self) -> str:
        return (
            f"<RankLoad {self.in_flight} in flight, reported {self._running} running and "
            f"{self._waiting} waiting, since then {self._sent} sent and {self._ended} ended>"
        )

    def report(self, running: int, waiting: int) -> None:
        """Take what the rank says about itself."""
        self._running, self._waiting = running, waiting
        self._sent = self._ended = 0

    def send(self) -> None:
        """One request more."""
        self.in_flight += 1
        self._sent += 1

    def end(self) -> None:
        """One request less: finished, failed or aborted."""
        self.in_flight -= 1
        self._ended += 1

    def score(self) -> int:
        """Return how busy the rank is; lower is better."""
        present = max(0, self._running + self._waiting + self._sent - self._ended)
        waiting = min(self._waiting + self._sent, present)
        return max(self.in_flight, present) + WAITING_WEIGHT * waiting


def choose(loads: Mapping[int, RankLoad]) -> int:
    """Return the key of the least busy of *loads*, which is not empty; the lowest on a tie."""
    return min(loads, key=lambda rank: (loads[rank].score(), rank))
