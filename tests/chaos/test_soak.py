"""A short soak with real processes, and proof that it finds what is wrong."""

import sys
from pathlib import Path

import pytest
import trio

from tests.chaos._deployment import Deployment, Faults, open_external
from tests.chaos._oracle import Oracle
from tests.chaos._round import run_round
from tests.chaos._soak import Soak, run_soak
from vllmfront.testing import Fault, FaultKind, FaultPlan

TEST_SECONDS = 90.0
STEP_MS = 2.0
PATIENCE = 1.0


async def soak_adds_up(folder: Path, name: str) -> None:
    lines: list[str] = []
    soak = Soak(
        seed=92,
        folder=folder,
        requests=60,
        rounds=1,
        spacing=15,
        step_ms=STEP_MS,
        patience=PATIENCE,
        deployments=(name,),
    )
    with trio.fail_after(TEST_SECONDS):
        report = await run_soak(soak, lines.append)

    assert report.violations == []
    assert report.outcomes["answered"] > 10
    assert sum(report.faults.values()) > 2
    assert "seed 92, round 0" in lines[0]


@pytest.mark.slow
async def test_a_short_soak_with_external_engines_adds_up(tmp_path: Path) -> None:
    await soak_adds_up(tmp_path, "external")


@pytest.mark.slow
async def test_a_short_soak_with_a_managed_engine_adds_up(tmp_path: Path) -> None:
    await soak_adds_up(tmp_path, "managed")


class Blind(Deployment):
    """Does not know of any tampering, as if the frontend itself had done it."""

    def tampered(self) -> dict[str, frozenset[FaultKind]]:
        return {}


@pytest.mark.slow
async def test_a_frontend_that_doubles_tokens_is_found(tmp_path: Path) -> None:
    double = Fault(kind=FaultKind.DUPLICATE, at=15, count=5)
    faults = Faults(plan=FaultPlan(faults=(double,)), processes=[()])
    with trio.fail_after(TEST_SECONDS):
        async with open_external(
            tmp_path, faults, ranks=1, step_ms=STEP_MS, python=sys.executable
        ) as truthful:
            blind = Blind(truthful.name, truthful.frontend, truthful.stations)
            report, _ = await run_round(
                blind,
                Oracle(),
                seed=1,
                number=0,
                count=40,
                first=None,
                patience=PATIENCE,
            )

    assert [one for one in report.violations if "the tokens are" in one]
    assert report.outcomes["answered"] > 20


def test_the_faults_of_a_soak_follow_from_its_seed(tmp_path: Path) -> None:
    soak = Soak(seed=7, folder=tmp_path)

    for name in ("external", "managed"):
        assert soak.faults(name) == Soak(seed=7, folder=tmp_path).faults(name)
        assert soak.faults(name) != Soak(seed=8, folder=tmp_path).faults(name)
