"""How late the event loop is with its work: the one measure of being overloaded ourselves."""

import logging
from collections.abc import Callable

import trio

_LOGGER = logging.getLogger(__name__)

TICK = 0.1
"""Seconds between two looks."""

LATE_TICKS = 3
"""Late looks in a row that make an overload. One is a burst of requests or a suspended machine;
where the loop is late by a second three times in a row, it has not kept up for three seconds."""

CALM_TICKS = 5
"""Looks in a row, at less than half the limit, that end it: half a second of keeping up."""


class LoopLag:
    """Watches whether the loop is late by more than *limit* seconds, look after look."""

    def __init__(self, limit: float) -> None:
        """Make a watch; with a *limit* of 0 it measures, and never finds an overload."""
        self.limit = limit
        self.value = 0.0
        """Seconds that the loop was late at the last look."""

        self.excessive = False
        """Whether new work should be refused."""

        self._run = 0

    def note(self, lag: float) -> None:
        """Take a look's result."""
        self.value = lag
        if self.limit <= 0:
            return
        against = lag < self.limit / 2 if self.excessive else lag > self.limit
        self._run = self._run + 1 if against else 0
        if self._run >= (CALM_TICKS if self.excessive else LATE_TICKS):
            self._run = 0
            self.excessive = not self.excessive
            self._tell()

    def _tell(self) -> None:
        if self.excessive:
            _LOGGER.warning(
                "This server is late with its work by %.1f s, limit %g s (--max-loop-lag): new "
                "requests get a 503 until it keeps up; give it more processor time or less work",
                self.value,
                self.limit,
            )
        else:
            _LOGGER.info("This server keeps up with its work again: requests are let in")

    async def serve(
        self,
        clock: Callable[[], float] = trio.current_time,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Look until cancelled; *clock* tells seconds."""
        task_status.started()
        while True:
            before = clock()
            await trio.sleep(TICK)
            self.note(max(0.0, clock() - before - TICK))
