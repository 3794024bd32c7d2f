"""One round of the soak: requests, stops of engines, and the books afterwards."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

import attrs
import trio

from tests.chaos._asks import PLAIN_ID, Ask, draw_asks
from tests.chaos._books import (
    Page,
    Tally,
    growth_complaints,
    idle_complaints,
    open_page,
    settle,
    sum_complaints,
)
from tests.chaos._deployment import Deployment
from tests.chaos._frontend import HOST
from tests.chaos._judge import (
    ANSWERED,
    REFUSED_OUTCOME,
    SILENCING,
    TIMED_OUT_OUTCOME,
    UNKNOWN,
    UNKNOWN_OUTCOMES,
    Circumstances,
    judge,
)
from tests.chaos._oracle import Oracle
from vllmfront.testing import Exchange, FaultKind, exchange, stopped

CLIENTS = 32
"""Requests in flight at once."""

PATIENCE = 45.0
"""Seconds that a client waits: more than a frontend lets a request wait for an engine."""

BEFORE_NEXT = 0.5
"""Seconds that a client waits after a refusal: one that says so asks for more."""

POLL_SECONDS = 0.25

LONGEST_STOP = 1.0
"""Seconds."""


@attrs.frozen(kw_only=True)
class Stop:
    """An engine that is kept from running for a while, from the start of a request on."""

    number: int
    station: int
    seconds: float


@attrs.define
class Report:
    """What a round, or several, came to."""

    outcomes: Counter[str] = attrs.field(factory=Counter)
    faults: Counter[str] = attrs.field(factory=Counter)
    violations: list[str] = attrs.field(factory=list)

    def add(self, other: "Report") -> None:
        self.outcomes += other.outcomes
        self.faults += other.faults
        self.violations += other.violations


def draw_stops(seed: int, round_number: int, count: int, stations: int) -> list[Stop]:
    """Return when engines are stopped in one round: two times in five hundred requests."""
    chance = random.Random(f"stops/{seed}/{round_number}").random
    return [
        Stop(
            number=int(chance() * count),
            station=int(chance() * stations),
            seconds=round(0.1 + chance() * LONGEST_STOP, 2),
        )
        for _ in range(-(-count // 250))
    ]


@attrs.define
class Round:
    """The requests of one round, on their way."""

    deployment: Deployment
    asks: Sequence[Ask]
    stops: Sequence[Stop]
    oracle: Oracle
    patience: float
    """Seconds that a client waits whose request may have lost its end to a fault."""

    report: Report = attrs.field(factory=Report)
    tally: Tally = attrs.field(factory=Tally)
    _next: int = 0

    async def run(self) -> None:
        """Send all requests, so many at a time, and judge each of them."""
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(self._send, nursery)

    def complaints(self, before: Page, first: Page | None) -> Callable[[Page], list[str]]:
        """Return what finds fault with the books after the round."""

        def complain(page: Page) -> list[str]:
            found = [*idle_complaints(page), *sum_complaints(before, page, self.tally)]
            if not self.deployment.all_up():
                found.append("an engine is away")
            if first is not None:
                found += growth_complaints(first, page)
            return found

        return complain

    async def nudge(self) -> None:
        """Have each engine say something, and wait until all are up in case one failed by it."""
        for station in self.deployment.stations:
            ask = Ask(id="nudge", prompt=(PLAIN_ID,), max_tokens=1)
            call = ask.call()
            headers = {**call.headers, "x-data-parallel-rank": str(station.rank)}
            self._count(ask, UNKNOWN, Exchange())
            with trio.move_on_after(self.patience):
                await exchange(
                    HOST, self.deployment.frontend.port, attrs.evolve(call, headers=headers)
                )
        await self.deployment.wait_ready()

    async def _send(self, nursery: trio.Nursery) -> None:
        while self._next < len(self.asks):
            number, self._next = self._next, self._next + 1
            for stop in self.stops:
                if stop.number == number:
                    nursery.start_soon(self._stop, stop)
            await self._ask(self.asks[number])

    async def _stop(self, stop: Stop) -> None:
        pid = self.deployment.stations[stop.station].pid()
        if pid is not None:
            self.report.faults["process stopped"] += 1
            with stopped(pid):
                await trio.sleep(stop.seconds)

    async def _ask(self, ask: Ask) -> None:
        found = Exchange()
        frontend = self.deployment.frontend
        began = time.time()
        try:
            with trio.move_on_after(PATIENCE) as patience:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._lose_patience, ask, patience)
                    await exchange(HOST, frontend.port, ask.call(), ask.fault, into=found)
                    nursery.cancel_scope.cancel(reason="answered")
        except OSError as error:
            self.report.violations.append(f"{self.deployment.name} {ask.id}: {error}")
            return
        around = Circumstances(
            troubled=self.deployment.troubled(began, time.time()),
            tampered=self._tampered(ask),
            breaks=self.deployment.breaks(began, time.time()),
            gave_up=patience.cancelled_caught,
        )
        verdict = judge(ask, found, around, self.oracle)
        self.report.outcomes[verdict.outcome] += 1
        self._count(ask, verdict.outcome, found)
        if verdict.outcome.startswith(REFUSED_OUTCOME):
            await trio.sleep(BEFORE_NEXT)
        for violation in verdict.violations:
            self.report.violations.append(f"{self.deployment.name} {ask.id} {ask}: {violation}")

    def _count(self, ask: Ask, outcome: str, found: Exchange) -> None:
        tally = self.tally
        tally.requests += 1
        tally.choices += ask.choices
        if outcome == ANSWERED:
            tally.answered += 1
            tally.answered_choices += ask.choices
        elif outcome.startswith(TIMED_OUT_OUTCOME):
            tally.timed_out += 1
        elif outcome in UNKNOWN_OUTCOMES:
            tally.unknown += 1
            tally.unseen += found.status is None

    def _tampered(self, ask: Ask) -> frozenset[FaultKind]:
        return self.deployment.tampered().get(ask.id, frozenset())

    async def _lose_patience(self, ask: Ask, patience: trio.CancelScope) -> None:
        """Do not wait long for an end that was taken away."""
        await trio.sleep(self.patience)
        while not self._tampered(ask) & SILENCING:  # noqa: ASYNC110 (it is in a file)
            await trio.sleep(POLL_SECONDS)
        patience.cancel(reason="the request was tampered with")


async def run_round(
    deployment: Deployment,
    oracle: Oracle,
    *,
    seed: int,
    number: int,
    count: int,
    first: Page | None,
    patience: float,
) -> tuple[Report, Page]:
    """Run one round and check the books after it.

    Args:
        deployment: Whose engines fail by its own plan.
        oracle: Knows the answers.
        seed: Of the requests.
        number: Of the round.
        count: How many requests.
        first: The books after the first round, None in the first: by then all is warm.
        patience: Seconds that a client waits whose request may have lost its end to a fault.

    Returns:
        What came of it, and the books in the end.
    """
    await deployment.wait_ready()
    before = await open_page(deployment.frontend)
    known = len(_entries(deployment))
    asks = draw_asks(seed, number, count)
    stops = draw_stops(seed, number, count, len(deployment.stations))
    running = Round(deployment, asks, stops, oracle, patience)
    await running.run()
    await deployment.wait_ready()
    report = running.report
    report.faults += Counter(_entries(deployment)[known:])
    after, complaints = await settle(
        deployment.frontend, running.complaints(before, first), running.nudge
    )
    report.violations += [f"{deployment.name}, round {number}: {one}" for one in complaints]
    return report, after


def _entries(deployment: Deployment) -> list[str]:
    entries = [entry for station in deployment.stations for entry in station.entries()]
    entries.sort(key=lambda entry: entry.wall_time)
    return ["start" if entry.kind is None else entry.kind.value for entry in entries]
