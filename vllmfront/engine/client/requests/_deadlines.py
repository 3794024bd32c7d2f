"""Requests that must have ended by a certain time: one heap and one task for all of them."""

import heapq
import itertools
import math
from collections.abc import Callable

import trio

from vllmfront.engine.client.requests._child import Child

_MOST_STALE = 64
"""Entries of ended requests that stay in the heap even where they are the majority."""


class Deadlines:
    """Knows who must end when. Times are Trio's clock; ``serve`` is its task.

    The heap holds numbers alone, so that a request which has ended is freed at once; its entry
    stays until it is due, or until such entries are in the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._children: dict[int, Child] = {}
        self._numbers = itertools.count(1)
        self._sooner = trio.Event()

    def __len__(self) -> int:
        return len(self._children)

    def add(self, child: Child, deadline: float) -> None:
        """Watch *child*, which will be told about by ``forget`` when it ends before."""
        number = child.deadline_number = next(self._numbers)
        self._children[number] = child
        if not self._heap or deadline < self._heap[0][0]:
            self._sooner.set()
        heapq.heappush(self._heap, (deadline, number))

    def forget(self, child: Child) -> None:
        """Watch *child* no longer."""
        self._children.pop(child.deadline_number, None)
        child.deadline_number = 0
        if len(self._heap) > 2 * len(self._children) + _MOST_STALE:
            self._heap = [entry for entry in self._heap if entry[1] in self._children]
            heapq.heapify(self._heap)

    def take_due(self, now: float) -> list[Child]:
        """Return those whose time is up at *now*; they are not watched any more."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            _, number = heapq.heappop(self._heap)
            child = self._children.pop(number, None)
            if child is not None:
                child.deadline_number = 0
                due.append(child)
        return due

    def next_due(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    async def serve(self, expire: Callable[[list[Child]], None]) -> None:
        """Call *expire* with those whose time is up, until cancelled."""
        while True:
            with trio.move_on_at(self.next_due()):
                await self._sooner.wait()
            self._sooner = trio.Event()
            due = self.take_due(trio.current_time())
            if due:
                expire(due)
