"""Whose connection an output came over: the only way to tell whose last words a sentinel is."""

import logging
from collections.abc import Collection, Sequence

from vllmfront.engine.client.membership import EngineRank, Membership
from vllmfront.engine.transport import PeerChange, PeerMonitor

_LOGGER = logging.getLogger(__name__)


class OutputConnections:
    """The connections to the output socket, by descriptor.

    Messages name the rank that sends them, but the report of a death does not; and a process that
    was replaced may still have things to say.
    """

    def __init__(
        self, monitor: PeerMonitor, membership: Membership, *, others: Collection[int] = ()
    ) -> None:
        """Keep track of *monitor*.

        Args:
            monitor: Of the output socket.
            membership: Our engines.
            others: Engines that connect to us as well, but are served by other frontends.
        """
        self._monitor = monitor
        self._membership = membership
        self.others = others
        ranks = membership.ranks
        self.lone = next(iter(ranks.values())) if len(ranks) == 1 and not others else None
        """The only engine that can have said anything, if there is only one."""

        self.replaced = set[int]()
        """Those that belong to a process which another has replaced, or that is not ours."""

        self._owners: dict[int, EngineRank] = {}
        membership.on_greeting(self._forget)

    async def serve(self) -> None:
        """Keep track until cancelled."""
        while True:
            await self._monitor.wait_event()
            self._take_events()

    def claim(self, descriptor: int, engine: EngineRank) -> None:
        """Note that *engine* sends over *descriptor*."""
        if descriptor not in self.replaced:
            self._owners[descriptor] = engine

    def claim_for_others(self, descriptor: int) -> None:
        """Note that an engine which another frontend serves sends over *descriptor*."""
        self.replaced.add(descriptor)

    def owner(self, descriptor: int) -> EngineRank | None:
        """Return whose connection *descriptor* is, if it is one of a present process."""
        self._take_events()
        if descriptor in self.replaced:
            return None
        return self._owners.get(descriptor) or self.lone

    def suspects(self, descriptor: int) -> Sequence[EngineRank]:
        """Return whose connection *descriptor* may be, of present processes."""
        owner = self.owner(descriptor)
        if owner is not None:
            return [owner]
        if descriptor in self.replaced:
            return []
        known = set(self._owners.values())
        return [engine for engine in self._membership.ranks.values() if engine not in known]

    def _forget(self, engine: EngineRank) -> None:
        """Note that *engine* is a new process, which cannot have connected yet."""
        self._take_events()
        if self.lone is not None:
            self.replaced |= self._monitor.connected
        else:
            owned = {one for one, owner in self._owners.items() if owner is engine}
            self.replaced |= owned & self._monitor.connected
        for descriptor in self.replaced:
            self._owners.pop(descriptor, None)

    def _take_events(self) -> None:
        while (event := self._monitor.event_nowait()) is not None:
            # Of one that left the last messages may not have been read: it keeps its owner until
            # the descriptor is used again.
            if event.change is PeerChange.CAME:
                self.replaced.discard(event.descriptor)
                self._owners.pop(event.descriptor, None)
