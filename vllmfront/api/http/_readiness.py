"""One task that waits for all connections of a server to become readable.

A task for each would be woken, and its socket registered with the kernel anew, for every request;
here a socket is registered once, and its connection called back.
"""

import select
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import trio

_EVENTS_A_TURN = 32
"""Connections called before other tasks get their turn; a short request takes some 50 us."""


class Readiness:
    """Calls back when sockets are readable, for as long as they are.

    Callbacks must read, or ``unwatch``: what stays readable is called again and again. They must
    not block. Use it as a context manager: nothing can be watched outside of the block.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._callbacks.clear()
        self._epoll.close()

    def __repr__(self) -> str:
        return f"<Readiness of {len(self._callbacks)} sockets>"

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call *callback* when *descriptor* is readable, or its other end has gone.

        Raises:
            OSError: The kernel has no room for another one.
        """
        self._epoll.register(descriptor, select.EPOLLIN)
        self._callbacks[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        """Call back no more; does nothing for what is not watched. Due before a close."""
        if self._callbacks.pop(descriptor, None) is not None:
            with suppress(OSError):  # what is no longer there needs no taking out
                self._epoll.unregister(descriptor)

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait and call back until cancelled."""
        epoll, callbacks = self._epoll, self._callbacks
        task_status.started()
        while True:
            await trio.lowlevel.wait_readable(epoll.fileno())
            for descriptor, _events in epoll.poll(0, _EVENTS_A_TURN):
                callback = callbacks.get(descriptor)
                if callback is not None:  # an earlier one of this turn may have taken it back
                    callback()
