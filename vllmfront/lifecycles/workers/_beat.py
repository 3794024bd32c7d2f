"""A worker's signs of life: on the board four times a second; its counts to main now and then."""

import time
from collections.abc import Awaitable, Callable

import attrs
import trio

from vllmfront.interprocess import Cell, Line, Page
from vllmfront.lifecycles.workers._messages import Counts

INTERVAL = 0.25
"""Seconds between two looks at the board; who is silent for four of them gets no connections."""

STUCK_SECONDS = 30.0
"""Seconds of silence after which a worker is killed: its event loop stands still, and clients whose
connections it has would wait for ever. Other workers, and another process in its place, do not."""

_WATCH_INTERVAL = 1.0

_COUNTS_EVERY = 60
"""Looks between two reports: what a worker that is killed has counted since the last one is lost,
unless somebody scraped it meanwhile."""


@attrs.frozen(kw_only=True, eq=False)
class Beat:
    """Writes on this worker's page."""

    page: Page
    line: Line
    counts: Callable[[], Counts]
    refresh: Callable[[], object]
    """Puts on the board what is only looked at when somebody asks."""

    beside: Callable[[], Awaitable[None]]
    """Runs as long as this does."""

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child."""
        self._beat()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.beside)
            task_status.started()
            await self._serve(stop)
            nursery.cancel_scope.cancel(reason="stopped")

    async def _serve(self, stop: trio.Event) -> None:
        looks = 0
        while True:
            with trio.move_on_after(INTERVAL):
                await stop.wait()
                return
            self._beat()
            self.refresh()
            looks += 1
            if looks % _COUNTS_EVERY == 0:
                self.line.tell(self.counts())

    def _beat(self) -> None:
        self.page[Cell.BEAT] = time.monotonic_ns()
        self.page[Cell.CPU] = time.process_time_ns()


async def wait_stuck(page: Page, counts: Callable[[], bool]) -> None:
    """Return once the worker of *page* has given no sign of life for ``STUCK_SECONDS``.

    Args:
        page: Its own.
        counts: Whether it should give any: not before it has begun, nor when it leaves.
    """
    last, silent = page[Cell.BEAT], 0.0
    while silent < STUCK_SECONDS:
        await trio.sleep(_WATCH_INTERVAL)
        # Looks are counted, not time: we may have been the one that was stopped.
        now = page[Cell.BEAT]
        silent = silent + _WATCH_INTERVAL if now == last and counts() else 0.0
        last = now
