"""How the engines of one client become those of a client in another process, and back.

Two generations use one slot each. Only one of them answers engines that say HELLO, and holds the
slot that is free when the other one has gone.
"""

from collections.abc import Mapping, Sequence

import attrs
import trio

from vllmfront.engine._request import LoraRequest
from vllmfront.engine.client.entrance._entrance import Entrance, other_slot
from vllmfront.engine.client.entrance._reception import Reception
from vllmfront.engine.client.entrance._recorder import Recorder
from vllmfront.engine.client.entrance._spare import SpareSlot
from vllmfront.engine.client.entrance._standby import Standby
from vllmfront.engine.client.membership import EngineRank, EngineState, Membership, RankState
from vllmfront.engine.handshake import Roster
from vllmfront.engine.wire import Registration
from vllmfront.errors import EngineDied

_HELLO_BUDGET = 1.0
"""Seconds in which an engine that has connected says HELLO; it does so at once, as a rule."""

_POLL = 0.01
"""Seconds between two looks for engines that reconnect, which they try every 100 ms."""


@attrs.frozen(kw_only=True)
class EngineLegacy:
    """What engines do not repeat, and so one client must tell the next."""

    slot: int
    """The slot that the next one uses."""

    registrations: Mapping[int, Registration]
    """Of the ranks that serve."""

    lost: Mapping[int, str]
    """Why the other ranks do not."""

    coordinated: bool = False
    """Whether the listeners of a coordinator are among those that are handed over."""

    adapters: Sequence[LoraRequest] = ()
    """What requests may name; the ranks that serve have them."""

    last_adapter_id: int = 0
    """None up to it may be given to another adapter: the engines may hold one under it."""


class Succession:
    """A client's part in the change of generations. Opened with the client."""

    def __init__(
        self,
        entrance: Entrance,
        slot: int,
        *,
        roster: Roster,
        membership: Membership,
        reception: Reception,
        spare: SpareSlot,
        recorder: Recorder | None,
    ) -> None:
        self.entrance = entrance
        self.slot = slot
        self._roster = roster
        self._membership = membership
        self._reception = reception
        self._recorder = recorder
        self._answering = Standby(reception.serve)
        self._holding = Standby(spare.serve)
        self.tasks = (self._answering.serve, self._holding.serve)
        """They run as long as the client is open."""

    def __repr__(self) -> str:
        return f"<Succession slot={self.slot}>"

    def obstacle(self) -> str | None:
        """Say why no other client can take over now; None: one can."""
        if self._membership.state.value is not EngineState.READY:
            return f"the engines are {self._membership.state.value.value}"
        loading = [
            str(engine.rank)
            for engine in self._membership.ranks.values()
            if engine.state in {RankState.LOADING, RankState.PREPARING}
        ]
        return f"engine {', '.join(loading)} is loading" if loading else None

    def legacy(self) -> EngineLegacy:
        """Return what the next client must be told."""
        ranks = self._membership.ranks.values()
        return EngineLegacy(
            slot=other_slot(self.slot),
            registrations={
                engine.rank: engine.registration
                for engine in ranks
                if engine.state.connected and engine.registration is not None
            },
            lost={engine.rank: str(engine.error) for engine in ranks if not engine.state.connected},
            coordinated=self.entrance.coordinator is not None,
            adapters=self._membership.adapters.served,
            last_adapter_id=self._membership.adapters.last_id,
        )

    def receive(self) -> None:
        """Answer engines that say HELLO, but leave the free slot to the generation before us."""
        self._answering.start()
        self._record()

    async def step_aside(self) -> EngineLegacy:
        """Leave the handshake and the free slot to the next client; ours serves on.

        Cancelled, it may have done one of both: see ``lead``.
        """
        with trio.move_on_after(_HELLO_BUDGET):
            while self._reception.busy:  # noqa: ASYNC110 - no event for what was not said
                await trio.sleep(_POLL)
        self._roster.shared = True
        await self._answering.stop()
        await self._holding.stop()
        self.entrance.leave_files(leave=True)
        if self._recorder is not None:
            self._recorder.stop()
        return self.legacy()

    def lead(self) -> None:
        """Do what only one generation does: the other one is gone, or has not come up."""
        self.entrance.leave_files(leave=False)
        self._answering.start()
        self._holding.start()
        self._record()

    def _record(self) -> None:
        if self._recorder is not None:
            self._recorder.start()

    async def wait_reached(self, budget: float) -> None:
        """Return once all engines that serve are connected to us, and give up the others.

        Until then nobody's leaving is taken for theirs.

        Args:
            budget: Seconds that they get to reconnect.
        """
        with trio.move_on_after(budget):
            while self._unconnected():  # noqa: ASYNC110 - nothing tells of a peer's identity
                await trio.sleep(_POLL)
        for engine in self._membership.ready:
            if self._membership.is_connected(engine):
                engine.unplaced = engine.descriptor is None
            else:
                error = EngineDied(f"engine {engine.rank} did not connect within {budget:g} s")
                self._membership.lose(engine, error)

    def _unconnected(self) -> list[EngineRank]:
        ready = self._membership.ready
        return [engine for engine in ready if not self._membership.is_connected(engine)]


def inherit(legacy: EngineLegacy, roster: Roster, membership: Membership) -> None:
    """Take over what a client of another process knew about the engines."""
    roster.shared = True
    for rank, registration in legacy.registrations.items():
        roster.inherit(rank, registration)
        membership.engine_arrived(rank)
        membership.engine_joined(rank, registration, prepared=True)
    for rank, reason in legacy.lost.items():
        membership.engine_arrived(rank)
        membership.lose(membership.ranks[rank], EngineDied(reason))
