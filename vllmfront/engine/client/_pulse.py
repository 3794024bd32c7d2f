"""A change that many tasks may wait for, whatever it is."""

import trio


class Pulse:
    """Wakes all who wait; what they wait for they look at themselves."""

    def __init__(self) -> None:
        self._next = trio.Event()

    def beat(self) -> None:
        """Wake all who wait."""
        beat, self._next = self._next, trio.Event()
        beat.set()

    async def wait(self) -> None:
        """Return at the next beat."""
        await self._next.wait()
