"""A few cycles; ``make chaos`` runs two hundred."""

from pathlib import Path

import pytest
import trio

from tests.rl_soak._soak import Soak, run_soak

TEST_SECONDS = 300.0


@pytest.mark.slow
async def test_rollouts_survive_a_few_cycles(tmp_path: Path) -> None:
    lines: list[str] = []
    soak = Soak(seed=92, folder=tmp_path, cycles=8, rollouts=16, step_ms=5.0)
    with trio.fail_after(TEST_SECONDS):
        report = await run_soak(soak, lines.append)

    assert report.violations == []
    assert report.fleet["lost"] == 0
    assert report.fleet["rollouts"]
    assert report.failed > 0
    assert sum(report.troubles.values()) > 4
