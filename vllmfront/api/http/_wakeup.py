"""A wake-up call for one task, without an event object a wait."""

import trio


class Wakeup:
    """Lets one task wait until another says that there is something to do.

    A call that comes while nobody waits is kept, once.
    """

    __slots__ = ("_called", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._called = False

    def wake(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)
        else:
            self._called = True

    async def wait(self) -> None:
        """Return after the next call of ``wake``, or at once for one that is kept.

        Raises:
            trio.BusyResourceError: another task is waiting already.
        """
        if self._called:
            self._called = False
            await trio.lowlevel.checkpoint()
            return
        if self._task is not None:
            raise trio.BusyResourceError("another task waits here already")
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
