"""Time limits of many connections in one heap, so that setting one costs no task and no scope."""

import heapq
import itertools
import math
from collections.abc import Callable

import trio


class Deadline:
    """One limit that moves: set and cleared often, expires rarely."""

    __slots__ = ("expire", "queued", "when")

    def __init__(self, expire: Callable[[], None]) -> None:
        self.expire: Callable[[], None] | None = expire
        """Called once the time is up, in the heap's task; must not block nor raise."""

        self.when = math.inf
        self.queued = math.inf
        """The earliest time at which the heap looks at this; never later than ``when``."""

    def clear(self) -> None:
        self.when = math.inf

    def close(self) -> None:
        """Drop the callback too, so that the heap keeps nothing alive."""
        self.when = math.inf
        self.expire = None


class Deadlines:
    """Watches all deadlines of a server in a single task.

    An entry of the heap is only a time to look: a deadline that has moved on since is queued
    again then. Moving a limit later, which nearly all moves do, is therefore one store.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._order = itertools.count()
        self._sleeper = trio.lowlevel.ParkingLot()
        self._sleeps_until = math.inf

    def __repr__(self) -> str:
        return f"<Deadlines queued={len(self)} sleeps_until={self._sleeps_until:.3f}>"

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, deadline: Deadline, seconds: float) -> None:
        """Let *deadline* expire in *seconds* from now."""
        deadline.when = when = trio.current_time() + seconds
        if when < deadline.queued:
            self._queue(deadline, when)

    def _queue(self, deadline: Deadline, when: float) -> None:
        deadline.queued = when
        heapq.heappush(self._heap, (when, next(self._order), deadline))
        if when < self._sleeps_until:
            self._sleeper.unpark_all()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Expire deadlines until cancelled."""
        task_status.started()
        while True:
            self._expire(trio.current_time())
            self._sleeps_until = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=self._sleeps_until):
                await self._sleeper.park()

    def _expire(self, now: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= now:
            looked, _, deadline = heapq.heappop(heap)
            if looked != deadline.queued:
                continue  # moved to an earlier time, which has its own entry
            deadline.queued = math.inf
            if deadline.when > now:
                if deadline.when != math.inf:
                    self._queue(deadline, deadline.when)
                continue
            deadline.when = math.inf
            if deadline.expire is not None:
                deadline.expire()
