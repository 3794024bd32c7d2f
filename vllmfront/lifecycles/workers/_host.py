"""What the main process has in common for all its workers."""

import pickle
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

import vllmfront
from vllmfront.engine import EngineClient, EngineClientConfig
from vllmfront.interprocess import Board, Cell, Lines, take
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles.workers._counts import ServiceCounts
from vllmfront.lifecycles.workers._messages import Reload, Welcome
from vllmfront.lifecycles.workers._spread import Candidate
from vllmfront.lifecycles.workers._state import Loans, take_state
from vllmfront.supervisor import Shutdown

_GOLDEN_STEP = 0x9E37_79B9
"""2**32 divided by the golden ratio: its multiples keep away from each other, however many."""

MAIN_PAGE = 0
"""Of the board; a worker's page has its number."""


@attrs.define(eq=False)
class Taker:
    """A worker that takes connections."""

    giving: socket.socket
    handed: int = 0
    """Connections that it was given."""


class WorkerHost:
    """Board, lines, and who takes connections; workers are known by their numbers, from 1."""

    def __init__(
        self,
        config: ServeConfig,
        engines: EngineClientConfig,
        client: EngineClient,
        board: Board,
        shutdown: Shutdown,
        *,
        first_id: int,
    ) -> None:
        self.config = config
        self.client = client
        self.board = board
        self.shutdown = shutdown
        self.lines = Lines()
        self.counts = ServiceCounts()
        self.takers: dict[int, Taker] = {}
        self.returned: list[socket.socket] = []
        """Connections that were dealt to workers which have died before they took them."""

        self.pids: dict[int, int] = {}
        self.serving = set[int]()
        """Those that have loaded the model's files."""

        self.loaded = trio.Event()
        """Set once one of them has."""

        self.wanted = config.server.api_server_count or 1
        """How many should run; more may be wanted later."""

        self._engines = engines
        self._next_id = first_id
        self._changed = trio.Event()
        self.loans = Loans(client)
        client.on_change(self.tell_state)
        client.gate.on_change(self.tell_state)

    def __repr__(self) -> str:
        return f"<WorkerHost {len(self.pids)} of {self.count} run>"

    @property
    def count(self) -> int:
        """How many workers there may be."""
        return len(self.board.pages) - 1

    @contextmanager
    def taking(self, number: int, giving: socket.socket) -> Iterator[None]:
        """Let worker *number* get connections for the block, or until ``stop_taking``."""
        self.takers[number] = Taker(giving)
        self._notify()
        try:
            yield
        finally:
            self.stop_taking(number)

    def stop_taking(self, number: int) -> None:
        """Let worker *number* get no connections any more."""
        self.takers.pop(number, None)

    def give_back(self, taking: socket.socket) -> None:
        """Take what a worker has left at its end of the pair: connections for others."""
        while True:
            try:
                connection = take(taking)
            except (BlockingIOError, OSError):
                break
            if connection is None:
                break
            self.returned.append(connection)
        self._notify()

    def candidates(self) -> list[Candidate]:
        """Return who takes connections, and how much each has.

        One that is still loading takes some only while no other could serve them.
        """
        now = time.monotonic_ns()
        found = []
        able = self.takers.keys() & self.serving
        for number, taker in self.takers.items():
            if able and number not in able:
                continue
            page = self.board.pages[number]
            found.append(
                Candidate(
                    number=number,
                    connections=taker.handed - page[Cell.CLOSED],
                    choices=page[Cell.CHOICES],
                    silent=(now - page[Cell.BEAT]) / 1e9,
                )
            )
        return found

    def want(self, count: int) -> None:
        """Let so many workers run."""
        self.wanted = count
        self._notify()

    def note_serving(self, number: int) -> None:
        """Take note that worker *number* has loaded the model's files."""
        self.serving.add(number)
        self.loaded.set()
        self._notify()

    async def wait_change(self) -> None:
        """Return when somebody takes connections, or is wanted, who did not before."""
        await self._changed.wait()

    def welcome(self, number: int, inputs: int, outputs: int, connections: int) -> Welcome:
        """Return what a new process of worker *number* is told first."""
        slots = self.client.worker_slots
        assert slots is not None
        engines = attrs.evolve(
            self._engines,
            input_fd=inputs,
            output_fd=outputs,
            client_index=slots.index(number - 1),
            follows=True,
            coordinated=False,
            loads=None,
            workers=0,
            adapters=(),
            state_file=None,
            # Of all that ever were: an engine may still know ids of those.
            first_id=self._next_id,
        )
        self._next_id = (self._next_id + _GOLDEN_STEP) & 0xFFFF_FFFF
        return Welcome(
            version=vllmfront.__version__,
            number=number,
            workers=self.count,
            settings=pickle.dumps((self.config, engines)),
            connections=connections,
            board=self.board.descriptor,
        )

    def reload(self) -> str:
        """Let all workers read anew what can change; returns what was done, for the log."""
        self.lines.tell_all(Reload())
        return f"told {len(self.lines.up)} workers, whose own lines say what they did"

    def tell_state(self) -> None:
        """Tell all workers how things are."""
        if not self.lines.up:
            return
        for number in self.lines.up:
            self.loans.lend(number)
        self.lines.tell_all(take_state(self.client))

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
