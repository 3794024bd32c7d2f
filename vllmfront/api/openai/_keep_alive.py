"""Comments on idle streams: one timer for all of them, and one for those without an engine."""

import heapq
import itertools
from typing import Protocol

import trio

from vllmfront.api.openai._service import ServiceSlot

WAITING_SECONDS = 5.0
"""Between two comments on a stream that waits for an engine in place of a lost one. Clients and
proxies that give up on silence do so after half a minute or more; who waits at all may wait for
as long as an engine loads."""


async def serve_waiting(
    slot: ServiceSlot, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Send comments on the streams of *slot* that have lost their engine, until cancelled."""
    task_status.started()
    while True:
        await trio.sleep(WAITING_SECONDS)
        for stream in slot.waiting_streams:
            if stream.begun and stream.on_waiting is not None:
                stream.on_waiting()


class WatchedStream(Protocol):
    """An event stream that may be silent."""

    closed: bool
    """Whether nothing more is sent."""

    last_write: float | None
    """When an event went out, by Trio's clock; set where it is watched."""

    def keep_alive(self) -> None:
        """Send a comment."""


class KeepAlives:
    """Sends a comment on each watched stream that was silent for *interval* seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._due: list[tuple[float, int, WatchedStream]] = []
        """When to look at a stream again; it may have written since it was put here."""

        self._numbers = itertools.count()
        self._arrived = trio.Event()

    def watch(self, answer: WatchedStream) -> None:
        """Keep *answer* alive until it closes."""
        answer.last_write = trio.current_time()
        self._push(answer.last_write, answer)
        self._arrived.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        task_status.started()
        while True:
            if not self._due:
                self._arrived = trio.Event()
                await self._arrived.wait()
            # Later arrivals are due later, so nothing needs to wake this.
            await trio.sleep_until(self._due[0][0])
            self._look(trio.current_time())

    def _look(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, _, answer = heapq.heappop(self._due)
            if answer.closed or answer.last_write is None:
                continue
            if answer.last_write + self._interval <= now:
                answer.keep_alive()
                self._push(now, answer)
            else:
                self._push(answer.last_write, answer)

    def _push(self, since: float, answer: WatchedStream) -> None:
        heapq.heappush(self._due, (since + self._interval, next(self._numbers), answer))
