"""Load of engine ranks, as they report it and as we know better since.

A report is out of date as soon as it is sent: what was sent to the rank since is there too, what
ended since is not. So requests spread evenly however rarely ranks report.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

WAITING_WEIGHT = 3
"""A waiting request counts this much more than a running one."""


class RankLoad:
    """The load of one rank. ``in_flight`` is ours; the rest is what the rank said last."""

    __slots__ = ("_balance", "_running", "_sharers", "_waiting", "in_flight")

    def __init__(self, sharers: int = 1) -> None:
        """Begin without load.

        Args:
            sharers: Clients that send requests to the rank, ours included. The others are taken
                to do between two reports what we do.
        """
        self.in_flight = 0
        self._running = 0
        self._waiting = 0
        self._balance = 0
        """What we have sent since the last report, less what has ended."""

        self._sharers = sharers

    def __repr__(self) -> str:
        return (
            f"<RankLoad {self.in_flight} in flight, reported {self._running} running and "
            f"{self._waiting} waiting, {self._balance:+d} since then>"
        )

    def report(self, running: int, waiting: int) -> None:
        """Take what the rank says about itself."""
        self._running, self._waiting = running, waiting
        self._balance = 0

    def send(self) -> None:
        """One request more."""
        self.in_flight += 1
        self._balance += 1

    def end(self) -> None:
        """One request less: finished, failed or aborted."""
        self.in_flight -= 1
        self._balance -= 1

    def share_signs(self, own: int) -> int:
        """Return how many signs of life of the rank all clients know of; we know of *own*."""
        return own

    def score(self) -> int:
        """Return how busy the rank is; lower is better.

        Where nothing waited, what was sent since counts as running: if it counted as waiting, a
        rank that has just reported would look much less busy than one that is about to.
        """
        since = self._balance * self._sharers
        present = self._running + self._waiting + since
        present = max(present, self.in_flight)
        waiting = self._waiting
        if not waiting:
            return present
        if since < 0:
            waiting = max(0, waiting + since)
        return present + WAITING_WEIGHT * waiting


class Candidate(Protocol):
    """A rank that may get a request."""

    @property
    def rank(self) -> int: ...

    @property
    def load(self) -> RankLoad: ...

    @property
    def cache_tokens(self) -> int:
        """How many tokens its prefix cache holds; 0 where that is not known."""


C = TypeVar("C", bound=Candidate)


def least_loaded(candidates: Sequence[C]) -> C:
    """Return the least busy of *candidates*, of which there is one; the first on a tie."""
    best = candidates[0]
    least = best.load.score()
    for candidate in candidates:
        score = candidate.load.score()
        if score < least:
            best, least = candidate, score
    return best
