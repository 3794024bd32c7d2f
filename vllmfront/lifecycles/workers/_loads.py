"""The load of each engine, as all processes of a server know it together.

Each process says on the board what it has in flight, and what an engine told it last: engines tell
one of their clients at a time. So all of them choose by the same numbers, to the last request.
"""

import time

from vllmfront.engine.routing import WAITING_WEIGHT, RankLoad
from vllmfront.interprocess import Board, Page, RankCell


class BoardLoads:
    """Makes the loads of one process."""

    def __init__(self, board: Board, page: Page, start_rank: int) -> None:
        self.board = board
        self._page = page
        self._start_rank = start_rank

    def __repr__(self) -> str:
        return f"<BoardLoads {self.board!r}>"

    def __call__(self, rank: int) -> RankLoad:
        """Return the load of *rank*."""
        return BoardLoad(self.board, self._page, rank - self._start_rank)


class BoardLoad(RankLoad):
    """The load of one rank; ``in_flight`` is this process's alone."""

    __slots__ = ("_board", "_page", "_place")

    def __init__(self, board: Board, page: Page, place: int) -> None:
        super().__init__()
        self._board = board
        self._page = page
        self._place = place

    def __repr__(self) -> str:
        total = self._board.rank_total(self._place, RankCell.IN_FLIGHT)
        return f"<BoardLoad {self.in_flight} of {total} in flight>"

    def report(self, running: int, waiting: int) -> None:
        """Say on the board what the rank says about itself."""
        page, place = self._page, self._place
        page.set_rank(place, RankCell.RUNNING, running)
        page.set_rank(place, RankCell.WAITING, waiting)
        known = self._board.rank_total(place, RankCell.IN_FLIGHT)
        page.set_rank(place, RankCell.KNOWN, known)
        page.set_rank(place, RankCell.HEARD, time.monotonic_ns())

    def send(self) -> None:
        """One request more."""
        self.in_flight += 1
        self._page.set_rank(self._place, RankCell.IN_FLIGHT, self.in_flight)

    def end(self) -> None:
        """One request less: finished, failed or aborted."""
        self.in_flight -= 1
        self._page.set_rank(self._place, RankCell.IN_FLIGHT, self.in_flight)

    def share_signs(self, own: int) -> int:
        """Return how many signs of life of the rank all processes know of; we know of *own*."""
        self._page.set_rank(self._place, RankCell.SIGNS, own)
        return self._board.rank_total(self._place, RankCell.SIGNS)

    def score(self) -> int:
        """Return how busy the rank is, as ``RankLoad`` does, by what all processes know."""
        board, place = self._board, self._place
        total = board.rank_total(place, RankCell.IN_FLIGHT)
        newest = max(board.pages, key=lambda page: page.rank(place, RankCell.HEARD))
        waiting = newest.rank(place, RankCell.WAITING)
        since = total - newest.rank(place, RankCell.KNOWN)
        present = max(newest.rank(place, RankCell.RUNNING) + waiting + since, total)
        if not waiting:
            return present
        if since < 0:
            waiting = max(0, waiting + since)
        return present + WAITING_WEIGHT * waiting
