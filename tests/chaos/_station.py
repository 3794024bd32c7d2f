"""One engine stand-in as a program with faults, and what happened to it."""

import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio

from tests.chaos._oracle import SIMULATED
from tests.chaos._proc import is_alive
from tests.chaos._trouble import Exit, Outage, breaks, outages
from vllmfront.testing import (
    FaultKind,
    FaultPlan,
    FlakyProgram,
    JournalEntry,
    ProcessFault,
    kill,
    read_journal,
    write_program,
)

POLL_SECONDS = 0.02

PATIENCE = 2.0
"""Seconds after which the operator kills an engine that hangs."""

BACKOFF = 0.2
"""Seconds until the operator starts an external engine again."""


@attrs.define
class Station:
    """The place of one engine; its program is started anew whenever it has ended."""

    rank: int
    program: FlakyProgram
    journal: Path
    operated: bool = True
    """Whether an operator kills it when it hangs; else its frontend has to see to that."""

    exits: list[Exit] = attrs.field(factory=list)
    """When processes were seen to have ended."""

    def entries(self) -> list[JournalEntry]:
        return read_journal(self.journal)

    def outages(self) -> list[Outage]:
        return outages(self.entries(), self.exits, time.time())

    def breaks(self, began: float, ended: float) -> int:
        return breaks(self.entries(), self.exits, began, ended)

    def pid(self) -> int | None:
        """Return the process of the present life, if it is alive."""
        pids = self.program.pids()
        return pids[-1] if pids and is_alive(pids[-1]) else None

    async def watch(self) -> None:
        """Note the ends of processes, and kill those that hang where nobody else does."""
        seen_alive = 0
        while True:
            await trio.sleep(POLL_SECONDS)
            lives = len(self.program.pids())
            if self.pid() is not None:
                seen_alive = lives
            elif seen_alive:
                self.exits.append(Exit(time.time(), seen_alive - 1))
                seen_alive = 0
            if self.operated:
                self._kill_hanging()

    def _kill_hanging(self) -> None:
        pids, now = self.program.pids(), time.time()
        for entry in self.entries():
            hangs = entry.kind is FaultKind.HANG and entry.life == len(pids) - 1
            if hangs and entry.wall_time + PATIENCE < now and is_alive(pids[-1]):
                kill(pids[-1])

    async def keep(self, handshake: str, log: Path) -> None:
        """Run the program as an external engine, again and again, until cancelled."""
        words = [str(self.program.path), "--handshake", handshake, "--start-rank", str(self.rank)]
        with log.open("ab") as output:
            while True:
                # Cancelled, it is told to end, and killed if it does not.
                await trio.run_process(words, stdout=output, stderr=output, check=False)
                await trio.sleep(BACKOFF)


def build_station(
    folder: Path,
    rank: int,
    plan: FaultPlan,
    *,
    step_ms: float,
    process_faults: Sequence[ProcessFault] = (),
    python: str,
    operated: bool = True,
) -> Station:
    """Write the program of *rank*, which fails by *plan*, into a folder of its own."""
    folder.mkdir(parents=True)
    plan_file, journal = folder / "faults.json", folder / "journal"
    plan_file.write_text(plan.to_json())
    command = [
        *(python, "-m", "vllmfront", "simulate", "--first-life", "{life}"),
        *("--faults", str(plan_file), "--faults-journal", str(journal)),
        *("--step-ms", str(step_ms), *SIMULATED),
    ]
    return Station(rank, write_program(folder, command, process_faults), journal, operated)
