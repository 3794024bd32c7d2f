"""The slots of other processes of this server, which their clients use while those run.

Engines are connected to all of them from the start. One that nobody uses is held here: engines
would otherwise connect to it anew every half minute; and rows that arrive there belong to a process
that is dead, so they are aborted.
"""

from collections.abc import Awaitable, Callable, Sequence

from vllmfront.engine.client.entrance._entrance import Slot
from vllmfront.engine.client.entrance._spare import SpareSlot
from vllmfront.engine.client.entrance._standby import Standby


class WorkerSlots:
    """Who has which slot; opened with the client."""

    def __init__(
        self, slots: Sequence[Slot], hold: Callable[[Slot], SpareSlot], *, first: int
    ) -> None:
        """Hold all *slots*.

        Args:
            slots: Those of the other processes.
            hold: Makes what reads a slot that is not in use.
            first: The ``client_index`` of the first of them.
        """
        self._slots = slots
        self._first = first
        self._holding = [Standby(hold(slot).serve) for slot in slots]
        for standby in self._holding:
            standby.start()

    def __repr__(self) -> str:
        return f"<WorkerSlots {len(self._slots)}>"

    @property
    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """They run as long as the client is open."""
        return [standby.serve for standby in self._holding]

    def index(self, number: int) -> int:
        """Return the ``client_index`` of slot *number*, counted from 0."""
        return self._first + number

    async def lend(self, number: int) -> tuple[int, int]:
        """Leave slot *number* to the client of another process; ``take_back`` is due after it.

        Returns:
            The listening descriptors for inputs and outputs, which stay ours.
        """
        await self._holding[number].stop()
        slot = self._slots[number]
        return slot.inputs.fileno(), slot.outputs.fileno()

    def take_back(self, number: int) -> None:
        """Hold slot *number* again: its process is dead, or was not started."""
        self._holding[number].start()
