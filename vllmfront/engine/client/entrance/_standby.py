"""A body that runs while it is wanted: what only one generation of clients may do at a time."""

from collections.abc import Awaitable, Callable

import trio


class Standby:
    """Runs *body* whenever told to, until told to leave off; ``serve`` is its task."""

    def __init__(self, body: Callable[[], Awaitable[None]]) -> None:
        """Stand by.

        Args:
            body: Runs until it is cancelled, and leaves nothing open then.
        """
        self._body = body
        self._wanted = trio.Event()
        self._scope = trio.CancelScope()
        self._idle = trio.Event()

    def start(self) -> None:
        """Let the body run, from the next turn of the event loop on."""
        self._wanted.set()

    async def stop(self) -> None:
        """Return once the body does not run, nor will; cancelled, it will not all the same."""
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._scope.cancel(reason="not wanted any more")
        await self._idle.wait()

    async def serve(self) -> None:
        """Run the body whenever it is wanted, until cancelled."""
        while True:
            self._idle.set()
            with trio.CancelScope() as self._scope:
                await self._wanted.wait()
                await self._body()
