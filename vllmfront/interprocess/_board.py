"""Numbers that all processes of a server see, without a message for each change.

A board has a page for each process, which alone writes there. A page is a row of 64-bit integers:
those of ``Cell``, then those of ``RankCell`` for each engine. A write is one aligned store, so a
reader sees the old number or the new one, and never waits.
"""

import enum
import mmap
import os
import threading
from types import TracebackType
from typing import Self

from vllmfront.errors import ConfigurationError

_BYTES = 8
"""Of a cell."""


class Cell(enum.IntEnum):
    """What a process says of itself."""

    BEAT = 0
    """When its event loop last turned, in nanoseconds of the machine's monotonic clock."""

    CHOICES = 1
    """Choices of requests that it has let in and that have not ended."""

    QUEUED_TOKENS = 2
    """Prompt tokens that wait for their first answer."""

    TAKEN = 3
    """Connections that it has taken over since it began."""

    CLOSED = 4
    """As many of them as have ended."""

    CPU = 5
    """Processor time that it has used, in nanoseconds."""


class RankCell(enum.IntEnum):
    """What a process says of one engine."""

    IN_FLIGHT = 0
    """Engine requests of its own there."""

    HEARD = 1
    """When the engine told it how busy it is, in nanoseconds of the monotonic clock; 0: never."""

    RUNNING = 2
    WAITING = 3
    KNOWN = 4
    """Requests of all processes that were there when the engine said so."""

    SIGNS = 5
    """How often it gave the process a sign of life."""


class Page:
    """One process's part of a board, as the process writes it or as others read it."""

    __slots__ = ("_cells", "_start")

    def __init__(self, cells: memoryview, start: int) -> None:
        self._cells = cells
        self._start = start

    def __getitem__(self, cell: Cell) -> int:
        return self._cells[self._start + cell]

    def __setitem__(self, cell: Cell, value: int) -> None:
        self._cells[self._start + cell] = value

    def rank(self, number: int, cell: RankCell) -> int:
        """Return what is said of the engine with that place among all."""
        return self._cells[self._start + _rank_offset(number) + cell]

    def set_rank(self, number: int, cell: RankCell, value: int) -> None:
        """Say something of the engine with that place among all."""
        self._cells[self._start + _rank_offset(number) + cell] = value


class Board:
    """The pages of all processes; closed by leaving its ``with`` block."""

    def __init__(self, descriptor: int, *, pages: int, ranks: int) -> None:
        """Look at the board behind *descriptor*, which it owns from now on.

        Args:
            descriptor: Of shared memory that is large enough: see ``create``.
            pages: How many processes have one.
            ranks: How many engines there are.

        Raises:
            ConfigurationError: It is no such memory.
        """
        self.descriptor = descriptor
        self._size = len(Cell) + ranks * len(RankCell)
        self._fence = threading.Lock()
        try:
            self._memory = mmap.mmap(descriptor, pages * self._size * _BYTES)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"descriptor {descriptor} is no shared memory") from error
        self._cells = memoryview(self._memory).cast("q")
        self.pages = [Page(self._cells, number * self._size) for number in range(pages)]
        self.ranks = ranks

    @classmethod
    def create(cls, *, pages: int, ranks: int) -> Self:
        """Make a board of zeros, which ends with the last process that looks at it."""
        descriptor = os.memfd_create("vllmfront-board")
        os.ftruncate(descriptor, pages * (len(Cell) + ranks * len(RankCell)) * _BYTES)
        return cls(descriptor, pages=pages, ranks=ranks)

    def __repr__(self) -> str:
        return f"<Board of {len(self.pages)} processes and {self.ranks} engines>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Look no more; pages are of no use from then on."""
        if self.descriptor >= 0:
            self._cells.release()
            self._memory.close()
            os.close(self.descriptor)
            self.descriptor = -1

    def total(self, cell: Cell) -> int:
        """Return the sum over all processes."""
        return sum(page[cell] for page in self.pages)

    def rank_total(self, number: int, cell: RankCell) -> int:
        """Return the sum over all processes, for the engine with that place among all."""
        return sum(page.rank(number, cell) for page in self.pages)

    def total_after(self, page: Page, cell: Cell, value: int) -> int:
        """Write *value* on *page*, and return the sum over all that others must have seen or see.

        Two processes that do this at the same time both see both values: neither reads before
        its own write is out.
        """
        page[cell] = value
        with self._fence:  # a locked instruction: what was written before is visible after it
            pass
        return self.total(cell)

    def clear(self, number: int) -> None:
        """Wipe the page of a process that is dead."""
        start = number * self._size
        for cell in range(start, start + self._size):
            self._cells[cell] = 0


def _rank_offset(number: int) -> int:
    return len(Cell) + number * len(RankCell)
