"""Answers that go on without a task of their own."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any

import trio

_LOGGER = logging.getLogger(__name__)


class Exchange(ABC):
    """An answer that has begun, and that calls move forward: outputs that arrive, a client's end.

    A task that does nothing but sleep until an answer is complete costs a short request a tenth
    of its time. The connection owns its exchange as it owns a handler that runs in its task: there
    is one at a time, and it ends no later than the connection. Elsewhere it can be awaited.
    """

    __slots__ = ("_callbacks", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._callbacks: list[Callable[[], None]] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call *callback* once it has ended, after those that asked before."""
        if self.ended:
            callback()
        else:
            self._callbacks.append(callback)

    def end(self) -> None:
        """Tell that it has ended, once; the response is complete, or will never be."""
        if self.ended:
            return
        self.ended = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # whoever makes it end must not suffer for it
                _LOGGER.exception("What is due at the end of an HTTP exchange failed")

    @abstractmethod
    def cut(self) -> None:
        """End it now; the request's ``close_cause`` says why. Does nothing once it has ended."""

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait for its end; cancelled, cut it."""
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self.ended:
            await trio.lowlevel.checkpoint()
            return
        ended = trio.Event()
        self.on_end(ended.set)
        try:
            await ended.wait()
        except trio.Cancelled:
            self.cut()
            raise


class _Answered(Exchange):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.ended = True

    def cut(self) -> None:
        """Do nothing: it has ended."""


ANSWERED = _Answered()
"""What a handler returns that has answered in full already."""
