"""How evenly requests run on ranks that report rarely: in a model of ranks, clients, and ways."""

import heapq
import random
import statistics
from collections import deque
from collections.abc import Callable
from functools import partial

import attrs
import pytest

from tests.engine.routing.ranks import Rank
from vllmfront.engine.routing import RankLoad, least_loaded

RANKS = 8
CALLS = 512
REPORT_INTERVAL = 0.1
DELAY = 0.002
"""Seconds on the way, there or back."""

SECONDS = 12.0
WARM = 4.0


@attrs.define
class Model:
    """Clients that call without a pause, over one frontend or several."""

    max_batch: int
    mean_seconds: float
    frontends: int = 1
    together: bool = False
    """Whether all ranks report at once, as a coordinator does for them."""

    rng: random.Random = attrs.field(factory=lambda: random.Random(7))
    now: float = 0.0
    spreads: list[float] = attrs.field(factory=list)
    totals: list[float] = attrs.field(factory=list)

    _events: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list)
    _views: list[list[Rank]] = attrs.field(factory=list)
    _running: list[int] = attrs.field(factory=lambda: [0] * RANKS)
    _waiting: list[deque[int]] = attrs.field(factory=lambda: [deque() for _ in range(RANKS)])

    def run(self) -> None:
        """Fill ``spreads`` and ``totals``: of what runs, and of what runs or waits."""
        self._views = [
            [Rank(rank, RankLoad(self.frontends)) for rank in range(RANKS)]
            for _ in range(self.frontends)
        ]
        for call in range(CALLS):
            self._in(self.rng.random() * 0.01, partial(self._arrive, call))
        for rank in range(RANKS):
            shift = 0.0 if self.together else REPORT_INTERVAL * rank / RANKS
            self._in(shift, partial(self._report, rank))
        self._in(WARM, self._sample)
        while self._events[0][0] < SECONDS:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _in(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, self.rng.getrandbits(60), event))

    def _arrive(self, call: int) -> None:
        chosen = least_loaded(self._views[call % self.frontends])
        chosen.load.send()
        self._in(DELAY, partial(self._take, chosen.rank, call))

    def _take(self, rank: int, call: int) -> None:
        if self._running[rank] < self.max_batch:
            self._begin(rank, call)
        else:
            self._waiting[rank].append(call)

    def _begin(self, rank: int, call: int) -> None:
        self._running[rank] += 1
        seconds = self.rng.expovariate(1 / self.mean_seconds)
        self._in(seconds, partial(self._end, rank, call))

    def _end(self, rank: int, call: int) -> None:
        self._running[rank] -= 1
        if self._waiting[rank]:
            self._begin(rank, self._waiting[rank].popleft())
        self._in(DELAY, partial(self._answer, rank, call))

    def _answer(self, rank: int, call: int) -> None:
        self._views[call % self.frontends][rank].load.end()
        self._arrive(call)

    def _report(self, rank: int) -> None:
        self._in(DELAY, partial(self._hear, rank, self._running[rank], len(self._waiting[rank])))
        self._in(REPORT_INTERVAL, partial(self._report, rank))

    def _hear(self, rank: int, running: int, waiting: int) -> None:
        for view in self._views:
            view[rank].load.report(running, waiting)

    def _sample(self) -> None:
        totals = [run + len(wait) for run, wait in zip(self._running, self._waiting, strict=True)]
        self.spreads.append(spread(self._running))
        self.totals.append(spread(totals))
        self._in(0.037, self._sample)


def spread(counts: list[int]) -> float:
    """Return how far the most is above the least, as a part of the mean."""
    return (max(counts) - min(counts)) / statistics.mean(counts)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("mean_seconds", [0.2, 2.0])
def test_512_calls_run_evenly_on_8_ranks(mean_seconds: float, together: bool) -> None:
    model = Model(max_batch=256, mean_seconds=mean_seconds, together=together)
    model.run()

    assert statistics.mean(model.spreads) < 0.06
    assert statistics.quantiles(model.spreads, n=100)[98] < 0.1


def test_so_do_those_that_wait() -> None:
    model = Model(max_batch=40, mean_seconds=0.5)
    model.run()

    assert max(model.spreads) == 0.0
    assert statistics.mean(model.totals) < 0.1


def test_several_frontends_do_not_run_after_each_other() -> None:
    model = Model(max_batch=256, mean_seconds=2.0, frontends=4)
    model.run()

    assert statistics.mean(model.spreads) < 0.1
