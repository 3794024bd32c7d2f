"""Engines whose connection broke, and that come back as they were.

An engine reconnects by itself, and says nothing then: neither HELLO nor its registration. So after
each new connection the lost ones are tried for a while; a message reaches who is back.
"""

import trio

from vllmfront.engine.client.membership import EngineRank, Membership

LOOK_PERIOD = 0.1
"""Seconds between two tries. A new connection says only after a greeting whose it is."""

LOOKS = 50
"""Tries after each new connection."""


class Reconnections:
    """Tries the engines that are cut off; ``serve`` is its task."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._came = trio.Event()
        membership.on_loss(self._note_loss)

    def _note_loss(self, engine: EngineRank) -> None:
        """Look after one whose new connection may have come before the end of the old one."""
        if engine.cut_off:
            self._came.set()

    def note_connection(self) -> None:
        """Take note that somebody has connected to the input socket."""
        if self._cut_off():
            self._came.set()

    async def serve(self) -> None:
        """Take back who is connected again, until cancelled."""
        while True:
            await self._came.wait()
            self._came = trio.Event()
            for _ in range(LOOKS):
                await trio.sleep(LOOK_PERIOD)
                for engine in self._cut_off():
                    if self._membership.is_connected(engine):
                        self._membership.engine_returned(engine)
                if not self._cut_off():
                    break

    def _cut_off(self) -> list[EngineRank]:
        return [engine for engine in self._membership.ranks.values() if engine.cut_off]
