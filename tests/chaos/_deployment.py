"""A frontend and its engines, external or managed, with the faults of one seed."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from tests.chaos._frontend import Frontend, open_frontend
from tests.chaos._station import Station, build_station
from tests.chaos._trouble import tampered
from vllmfront.testing import FaultKind, FaultPlan, ProcessFault, write_python

READY_SECONDS = 60.0
POLL_SECONDS = 0.05


@attrs.define
class Deployment:
    """What the soak is run against."""

    name: str
    frontend: Frontend
    stations: Sequence[Station]

    def tampered(self) -> dict[str, frozenset[FaultKind]]:
        return tampered(entry for station in self.stations for entry in station.entries())

    def troubled(self, began: float, ended: float) -> bool:
        """Tell whether an engine could not be relied upon at some time in between."""
        return any(
            outage.touches(began, ended)
            for station in self.stations
            for outage in station.outages()
        )

    def breaks(self, began: float, ended: float) -> int:
        """Return how often a request may have lost its engine, or some of what that said."""
        return sum(station.breaks(began, ended) for station in self.stations)

    async def wait_ready(self) -> None:
        """Return once every engine is up and the frontend serves.

        Raises:
            RuntimeError: That does not happen.
        """
        with trio.move_on_after(READY_SECONDS):
            while not (self.all_up() and await self.frontend.health() == 200):
                if self.frontend.process.poll() is not None:
                    break
                await trio.sleep(POLL_SECONDS)
            else:
                return
        raise RuntimeError(
            f"{self.name}: not ready; the frontend said: {self.frontend.text()[-3000:]}"
        )

    def all_up(self) -> bool:
        """Tell whether every engine is ready, and not known to hang."""
        for station in self.stations:
            entries, lives = station.entries(), len(station.program.pids())
            up = [entry for entry in entries if entry.kind is None and entry.life == lives - 1]
            hung = [one for one in entries if one.kind is FaultKind.HANG and one.life == lives - 1]
            if station.pid() is None or not up or hung:
                return False
        return True


@attrs.frozen(kw_only=True)
class Faults:
    """What goes wrong at one deployment."""

    plan: FaultPlan
    processes: Sequence[Sequence[ProcessFault]]
    """Those of each station."""


@asynccontextmanager
async def open_external(
    folder: Path,
    faults: Faults,
    options: Sequence[str] = (),
    *,
    ranks: int,
    step_ms: float,
    python: str,
) -> AsyncGenerator[Deployment]:
    """Serve *ranks* engines that an operator keeps alive."""
    stations = [
        build_station(
            folder / f"rank{rank}",
            rank,
            faults.plan,
            step_ms=step_ms,
            process_faults=faults.processes[rank],
            python=python,
        )
        for rank in range(ranks)
    ]
    words = ["--data-parallel-size-local", "0", "--data-parallel-size", str(ranks), *options]
    async with open_frontend(folder / "frontend.log", words, python) as frontend:
        while (handshake := frontend.handshake()) is None:  # noqa: ASYNC110 (it is in a log)
            await trio.sleep(POLL_SECONDS)
        async with trio.open_nursery() as nursery:
            for station in stations:
                nursery.start_soon(station.keep, handshake, folder / f"rank{station.rank}.log")
                nursery.start_soon(station.watch)
            yield Deployment("external", frontend, stations)
            nursery.cancel_scope.cancel(reason="soak over")


@asynccontextmanager
async def open_managed(
    folder: Path, faults: Faults, options: Sequence[str], *, step_ms: float, python: str
) -> AsyncGenerator[Deployment]:
    """Serve an engine that the frontend starts, and starts again."""
    station = build_station(
        folder / "rank0",
        0,
        faults.plan,
        step_ms=step_ms,
        process_faults=faults.processes[0],
        python=python,
        operated=False,
    )
    words = ["--python", str(write_python(folder, station.program)), *options]
    log = folder / "frontend.log"
    async with open_frontend(log, words, python) as frontend, trio.open_nursery() as nursery:
        nursery.start_soon(station.watch)
        yield Deployment("managed", frontend, [station])
        nursery.cancel_scope.cancel(reason="soak over")
