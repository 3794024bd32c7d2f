"""A frontend that is replaced while its engines fail."""

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.chaos._asks import draw_asks
from tests.chaos._deployment import Deployment, open_external
from tests.chaos._oracle import Oracle
from tests.chaos._proc import is_alive
from tests.chaos._round import Round
from tests.chaos._soak import RANKS, Soak
from vllmfront.testing import FaultKind

TEST_SECONDS = 120.0
POLL_SECONDS = 0.05
STEP_MS = 5.0
REQUESTS = 120
BEFORE = 20
"""Requests that have been begun when the frontend is told to hand over."""


DEADLY = (FaultKind.CRASH, FaultKind.DIE)
REFUSED = "the upgrade failed, this process goes on: the engines are recovering"
"""What is logged where an engine was away at the wrong moment: then nothing changes."""


def pid_in(file: Path) -> int:
    return int(file.read_text())


def has_decided(deployment: Deployment, pid_file: Path, first: int) -> bool:
    """Tell whether the frontend was replaced, or has said that it will not be."""
    return pid_in(pid_file) != first or REFUSED in deployment.frontend.text()


@asynccontextmanager
async def open_replaceable(
    folder: Path, kinds: tuple[FaultKind, ...]
) -> AsyncGenerator[tuple[Deployment, Path]]:
    """Serve with faults of *kinds*; whoever serves in the end is ended."""
    pid_file = folder / "pid"
    soak = Soak(seed=3, folder=folder, spacing=40, kinds=kinds)
    deployment = open_external(
        folder / "external",
        soak.faults("external"),
        ["--pid-file", str(pid_file), "--shutdown-timeout", "60"],
        ranks=RANKS,
        step_ms=STEP_MS,
        python=sys.executable,
    )
    async with deployment as opened:
        try:
            yield opened, pid_file
        finally:
            last = pid_in(pid_file)
            if last != opened.frontend.pid:
                os.kill(last, signal.SIGTERM)
                with trio.move_on_after(TEST_SECONDS, shield=True):
                    while is_alive(last):  # noqa: ASYNC110 (a process of somebody else's)
                        await trio.sleep(POLL_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(), (FaultKind.STALL, FaultKind.SLOW), DEADLY])
async def test_a_replaced_frontend_cuts_nothing_short(
    tmp_path: Path, kinds: tuple[FaultKind, ...]
) -> None:
    with trio.fail_after(TEST_SECONDS):
        async with open_replaceable(tmp_path, kinds) as (deployment, pid_file):
            await deployment.wait_ready()
            first = pid_in(pid_file)
            asks = draw_asks(3, 0, REQUESTS)
            running = Round(deployment, asks, (), Oracle(), patience=5.0)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(running.run)
                while running.tally.requests < BEFORE:  # noqa: ASYNC110 (it is no event)
                    await trio.sleep(POLL_SECONDS)
                os.kill(first, signal.SIGUSR2)
            while not has_decided(deployment, pid_file, first):  # noqa: ASYNC110 (it is in files)
                await trio.sleep(POLL_SECONDS)

            assert running.report.violations == []
            assert running.report.outcomes["answered"] > REQUESTS // 2
            assert kinds == DEADLY or pid_in(pid_file) != first
