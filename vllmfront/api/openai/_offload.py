"""Work that grows with a request, kept off the event loop."""

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

INLINE_SIZE = 64 * 1024
"""Bytes or characters that are worked off in about a millisecond, or less than a thread costs."""

INLINE_MESSAGES = 64
"""Messages that a template renders in less than a millisecond."""

_THREADS = 2
"""More would fight with each other, and with the loop, for the interpreter."""


class Offload:
    """Runs pure functions at once when they are short, in a few worker threads when not."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def run(self, short: bool, function: Callable[[], T]) -> T:
        """Return what *function* returns.

        Cancelled, it returns at once; the thread cannot be stopped and its result is dropped.
        """
        if short:
            return function()
        return await trio.to_thread.run_sync(
            function, abandon_on_cancel=True, limiter=self._limiter
        )
