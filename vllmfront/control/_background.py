"""Work that is done to its end, whoever waits for it."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

from vllmfront.errors import EngineUnavailable, Reason

T = TypeVar("T")


class _Job(Generic[T]):
    """One piece of work, and what came of it."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: Exception | None = None
        self._done = trio.Event()

    async def run(self) -> None:
        try:
            self._results.append(await self._work())
        except Exception as error:  # noqa: BLE001 (it goes to who waits)
            self._error = error
        finally:
            self._done.set()

    async def result(self) -> T:
        await self._done.wait()
        if self._error is not None:
            raise self._error
        if not self._results:
            raise EngineUnavailable("The server is shutting down.", reason=Reason.DRAINING)
        return self._results[0]


class Background:
    """Owns the work; ``serve`` is its task, and the end of that is the end of all work."""

    def __init__(self) -> None:
        self.closed: str | None = None
        """Why no work is taken any more; None: it is."""

        self._nursery: trio.Nursery | None = None
        self._busy = 0

    @property
    def busy(self) -> bool:
        """Whether some work is not done yet."""
        return self._busy > 0

    def check_open(self) -> None:
        """Refuse work where none is taken.

        Raises:
            EngineUnavailable: Another try may reach who takes it.
        """
        if self.closed is not None:
            raise EngineUnavailable(self.closed, reason=Reason.DRAINING, retry_after=1.0)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what ``run`` is given, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what *work* returns; cancelled, the work goes on.

        Raises:
            Exception: The work raised it.
            EngineUnavailable: The server is about to end.
        """
        self.check_open()
        if self._nursery is None:
            raise EngineUnavailable("The server is shutting down.", reason=Reason.DRAINING)
        job = _Job(work)
        self._nursery.start_soon(self._do, job)
        return await job.result()

    async def _do(self, job: _Job[Any]) -> None:
        self._busy += 1
        try:
            await job.run()
        finally:
            self._busy -= 1
