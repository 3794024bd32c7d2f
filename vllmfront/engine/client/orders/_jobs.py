"""Work that is done in turn, and to its end, whoever waits for it."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import attrs
import trio

from vllmfront.errors import EngineUnavailable, Reason, VllmFrontError

T = TypeVar("T")


@attrs.define(eq=False)
class Job(Generic[T]):
    """Work for a task that outlives who asked for it; ``run`` is that task's part."""

    work: Callable[[], Awaitable[T]]
    _done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _results: list[T] = attrs.field(factory=list, init=False)
    _error: VllmFrontError | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        """Do the work; what it raises on purpose goes to who waits."""
        try:
            self._results.append(await self.work())
        except VllmFrontError as error:
            self._error = error
        finally:
            self._done.set()

    async def result(self) -> T:
        """Return what came of it; cancelled, the work goes on.

        Raises:
            VllmFrontError: It failed, or its task ended before it was done.
        """
        await self._done.wait()
        if self._error is not None:
            raise self._error
        if not self._results:
            raise EngineUnavailable("The engine client was closed", reason=Reason.DRAINING)
        return self._results[0]


@attrs.define(eq=False)
class _Turn:
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    interested: int = 0


class Turns:
    """One turn after the other for each name; a name that nobody is interested in costs nothing."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncGenerator[None]:
        """Wait until it is our turn with *name*; it ends with the block."""
        turn = self._turns.setdefault(name, _Turn())
        turn.interested += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.interested -= 1
            if not turn.interested:
                del self._turns[name]
