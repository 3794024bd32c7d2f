"""The start gate: engines begin together, once all of them listen. Pure."""

import attrs


@attrs.define
class StartGate:
    """Counts who has subscribed; tells when to say READY, which goes to everybody.

    Engines wait for it at their start, and ignore it later. It opens once all have subscribed.
    From then on whoever subscribes is let in at once: one that lost its connection, or a new
    process among others that serve. After the last one has left, all are awaited again.
    """

    engines: int
    subscribed: int = 0
    is_open: bool = False

    def subscribe(self) -> bool:
        """Note a subscription; return whether READY is due."""
        self.subscribed += 1
        return self._open()

    def unsubscribe(self) -> None:
        """Note the end of one."""
        self.subscribed = max(0, self.subscribed - 1)
        if self.subscribed == 0:
            self.is_open = False

    def resize(self, engines: int) -> bool:
        """Await another number of engines; return whether READY is due."""
        self.engines = engines
        return not self.is_open and self._open()

    def _open(self) -> bool:
        self.is_open = self.is_open or (self.subscribed >= self.engines > 0)
        return self.is_open
