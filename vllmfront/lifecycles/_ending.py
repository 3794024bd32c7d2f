"""The end of several processes at the same time."""

import attrs
import trio


@attrs.frozen
class Ending:
    """Lets the processes of a node end together, whose supervisor stops one after the other.

    For many that would take longer than the program has. None of them is ever stopped but at the
    end of all.
    """

    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)

    def begin(self, nursery: trio.Nursery, stop: trio.Event) -> trio.Event:
        """Return what is set once *stop* is, or that of another process.

        Args:
            nursery: Watches *stop* for as long as it is open.
            stop: Of one process.
        """
        nursery.start_soon(self._watch, stop)
        return self._begun

    async def _watch(self, stop: trio.Event) -> None:
        await stop.wait()
        self._begun.set()
