"""A frontend whose developer routes are open, and two engines that an operator keeps alive."""

import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from tests.chaos._deployment import Deployment
from tests.chaos._frontend import open_frontend
from tests.chaos._station import Station
from tests.rl_soak._record import EXIT, Record, Records
from tests.rl_soak._strikes import Strike, StrikeBox
from tests.rl_soak._truth import SEED, VOCAB_SIZE
from vllmfront.testing import write_program

RANKS = 2
POLL_SECONDS = 0.05

OPTIONS = (
    *("--data-parallel-size-local", "0", "--data-parallel-size", str(RANKS)),
    *("--control-timeout", "3"),
)


@attrs.define
class Place(Station):
    """The place of one engine, with what is in store for it, and what it hears."""

    strikes: StrikeBox = attrs.field(kw_only=True)
    records: Records = attrs.field(kw_only=True)
    _exits_read: int = 0

    def heard(self) -> Iterator[Record]:
        """Yield what is new, ends of processes among it."""
        yield from self.records.new()
        for one in self.exits[self._exits_read :]:
            self._exits_read += 1
            yield Record(time=one.time, rank=self.rank, life=one.life, event=EXIT)


@attrs.define
class RlDeployment(Deployment):
    """What the soak is run against."""

    places: Sequence[Place] = attrs.field(kw_only=True)

    def prepare(self, strikes: Sequence[Sequence[Strike]]) -> None:
        """Have *strikes* in store, for each rank, and no older ones."""
        for place, own in zip(self.places, strikes, strict=True):
            place.strikes.put(list(own))

    def heard(self) -> list[Record]:
        """Return what engines have heard since the last time, in order."""
        found = [record for place in self.places for record in place.heard()]
        return sorted(found, key=lambda record: record.time)


@asynccontextmanager
async def open_deployment(folder: Path, *, step_ms: float) -> AsyncGenerator[RlDeployment]:
    """Serve for the block."""
    places = [_build_place(folder / f"rank{rank}", rank, step_ms) for rank in range(RANKS)]
    log = folder / "frontend.log"
    async with open_frontend(log, OPTIONS, environment={"VLLM_SERVER_DEV_MODE": "1"}) as frontend:
        while (handshake := frontend.handshake()) is None:  # noqa: ASYNC110 (it is in a log)
            await trio.sleep(POLL_SECONDS)
        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(place.keep, handshake, folder / f"rank{place.rank}.log")
                nursery.start_soon(place.watch)
            yield RlDeployment("rl", frontend, places, places=places)
            nursery.cancel_scope.cancel(reason="soak over")


def _build_place(folder: Path, rank: int, step_ms: float) -> Place:
    folder.mkdir(parents=True)
    journal, record, strikes = folder / "journal", folder / "record", folder / "strikes.json"
    command = [
        *(sys.executable, "-m", "tests.rl_soak.engine"),
        *("--record", str(record), "--strikes", str(strikes)),
        *("--first-life", "{life}", "--faults-journal", str(journal)),
        *("--step-ms", str(step_ms), "--vocab-size", str(VOCAB_SIZE), "--seed", str(SEED)),
        *("--max-model-len", "1024", "--log-level", "warning"),
    ]
    return Place(
        rank,
        write_program(folder, command),
        journal,
        strikes=StrikeBox(strikes),
        records=Records(record),
    )
