"""The soak: rounds of requests before both deployments, until the time is over."""

import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

from tests.chaos._books import Page
from tests.chaos._deployment import Deployment, Faults, open_external, open_managed
from tests.chaos._oracle import Oracle
from tests.chaos._round import Report, run_round
from vllmfront.testing import (
    FaultKind,
    FaultPlan,
    Moment,
    Odds,
    ProcessFault,
    ProcessFaultKind,
)

RANKS = 2
LIVES = 200
"""More than a rank has in a soak."""

FAULTS_A_LIFE = 60
"""So many that a life that meets no deadly one does not get by without any for long."""

KINDS = (
    *FaultKind,
    # These happen in the field; the others only to test that they are not taken for truth.
    *(FaultKind.CRASH, FaultKind.DIE, FaultKind.STALL, FaultKind.SLOW),
)

RESTARTS = (
    *("--engine-restart-intensity", "1000/3600"),
    *("--engine-restart-backoff", "0.05", "--engine-restart-backoff-cap", "0.2"),
    *("--engine-stall-restart", "5", "--engine-ready-timeout-secs", "6"),
)
"""Options of a frontend that starts its engine again at once, whatever became of it."""

OVERTIME = 600.0
"""Seconds that the last round and the starts may take beyond the soak's own."""

Say = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Soak:
    """What is run."""

    seed: int
    folder: Path
    requests: int = 500
    rounds: int | None = None
    """None: as many as the time allows."""

    seconds: float = 180.0
    """No further round begins after them."""

    spacing: int = 75
    """Messages with outputs that a rank sends from one fault to the next, on average."""

    kinds: Sequence[FaultKind] = KINDS
    """Of engine faults; without any, programs do not fail either."""

    step_ms: float = 5.0
    patience: float = 5.0
    """Seconds that a client waits whose request may have lost its end to a fault."""

    deployments: Sequence[str] = ("external", "managed")
    python: str = sys.executable

    def faults(self, name: str) -> Faults:
        """Return what goes wrong at one deployment: it follows from the seed."""
        ranks = RANKS if name == "external" else 1
        seed = self.seed if name == "external" else ~self.seed
        odds = Odds(
            kinds=self.kinds,
            per_life=FAULTS_A_LIFE,
            within=FAULTS_A_LIFE * self.spacing,
            start=0.15,
        )
        plan = FaultPlan.from_seed(seed, ranks=ranks, lives=LIVES, odds=odds)
        first = 2
        if name == "managed":  # a failure of the very first start is one of the configuration
            faults = [one for one in plan.faults if one.life or one.on is not Moment.START]
            plan = attrs.evolve(plan, faults=faults)
            first = 0
        processes = [_process_faults(first + rank) if self.kinds else () for rank in range(ranks)]
        return Faults(plan=plan, processes=processes)


def _process_faults(first: int) -> Sequence[ProcessFault]:
    """Return the faults of a rank's program from its life *first* on: each kind again and again."""
    kinds = (ProcessFaultKind.EXIT, ProcessFaultKind.DIE_AT_START, ProcessFaultKind.KILL)
    return [
        ProcessFault(kind=kinds[number % len(kinds)], life=life, seconds=4.0, status=number % 2)
        for number, life in enumerate(range(first, LIVES, 4))
    ]


async def run_soak(soak: Soak, say: Say) -> Report:
    """Run it, and tell *say* how it goes; what is wrong is in the report."""
    total = Report()
    with trio.fail_after(soak.seconds + OVERTIME):
        async with _open_deployments(soak) as deployments:
            await _run_rounds(soak, deployments, say, total)
    return total


async def _run_rounds(
    soak: Soak, deployments: Sequence[Deployment], say: Say, total: Report
) -> None:
    oracle, first = Oracle(), dict[str, Page]()
    ends_at, number = time.monotonic() + soak.seconds, 0
    while _goes_on(soak, number, ends_at):
        for deployment in deployments:
            began = time.monotonic()
            report, page = await run_round(
                deployment,
                oracle,
                seed=soak.seed,
                number=number,
                count=soak.requests // len(deployments),
                first=first.get(deployment.name),
                patience=soak.patience,
            )
            first.setdefault(deployment.name, page)
            total.add(report)
            took = time.monotonic() - began
            say(f"seed {soak.seed}, round {number}, {deployment.name}, {took:.1f} s")
            say(_line(report, page))
            for violation in report.violations:
                say(f"  WRONG (seed {soak.seed}): {violation}")
        number += 1


def _goes_on(soak: Soak, number: int, ends_at: float) -> bool:
    if soak.rounds is not None:
        return number < soak.rounds
    return number == 0 or time.monotonic() < ends_at


def _line(report: Report, page: Page) -> str:
    held = page.held
    outcomes = ", ".join(f"{count} {name}" for name, count in report.outcomes.most_common())
    faults = ", ".join(f"{count} {name}" for name, count in report.faults.most_common())
    return (
        f"  outcomes: {outcomes}\n"
        f"  faults: {faults or 'none'}\n"
        f"  frontend: {page.tasks} tasks, {held.descriptors} descriptors, {held.threads} threads,"
        f" {held.memory >> 20} MiB, {held.children} children"
    )


@asynccontextmanager
async def _open_deployments(soak: Soak) -> AsyncGenerator[list[Deployment]]:
    folder, python, step_ms = soak.folder, soak.python, soak.step_ms
    async with AsyncExitStack() as stack:
        found = []
        if "external" in soak.deployments:
            external = open_external(
                folder / "external",
                soak.faults("external"),
                ranks=RANKS,
                step_ms=step_ms,
                python=python,
            )
            found.append(await stack.enter_async_context(external))
        if "managed" in soak.deployments:
            managed = open_managed(
                folder / "managed", soak.faults("managed"), RESTARTS, step_ms=step_ms, python=python
            )
            found.append(await stack.enter_async_context(managed))
        yield found
