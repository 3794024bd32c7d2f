"""Who takes nothing of what was sent, and for how long."""

from collections.abc import Callable

import trio

from vllmfront.api.http._deadlines import Deadline, Deadlines
from vllmfront.api.http._outlet import Outlet

_LOOKS = 8
"""How often a limit is checked before it is up: an eighth of it is the precision."""


class SendWatch:
    """Calls a client stalled that has taken nothing of an outlet's bytes for a while.

    The kernel calls a socket writable only when much of its large buffer is free, so what counts
    is what that buffer holds: a slow client may be reading all the while.
    """

    def __init__(
        self,
        outlet: Outlet,
        deadlines: Deadlines,
        timeout: float,
        on_stalled: Callable[[], None],
    ) -> None:
        self._outlet = outlet
        self._deadlines = deadlines
        self._timeout = timeout
        self._on_stalled = on_stalled
        self._deadline = Deadline(self._look)
        self._in_kernel = 0
        """Bytes sent that the client had not taken, when it last took any."""

        self._progress_at = 0.0

    def begin(self) -> None:
        self.note_progress()
        self._deadlines.set(self._deadline, self._timeout / _LOOKS)

    def note_progress(self) -> None:
        self._in_kernel = self._outlet.bytes_in_kernel()
        self._progress_at = trio.current_time()

    def end(self) -> None:
        self._deadline.clear()

    def close(self) -> None:
        self._deadline.close()

    def _look(self) -> None:
        if self._outlet.bytes_in_kernel() < self._in_kernel:
            self.note_progress()
        left = self._progress_at + self._timeout - trio.current_time()
        if left <= 0:
            self._on_stalled()
        else:
            self._deadlines.set(self._deadline, min(left, self._timeout / _LOOKS))
