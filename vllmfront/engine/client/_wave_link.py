"""Who coordinates a client's engines, and what it has to know of them."""

from collections.abc import Mapping

from vllmfront.engine.client.membership import EngineRank, Membership
from vllmfront.engine.coordinator import (
    Coordinator,
    CoordinatorListeners,
    CoordinatorSubscription,
    NoWaves,
    Waves,
)
from vllmfront.engine.wire import EngineLoad, Registration

Coordination = Coordinator | CoordinatorSubscription | NoWaves


def choose_coordination(
    membership: Membership,
    listeners: CoordinatorListeners | None,
    *,
    owns_handshake: bool,
    engine_count: int,
    address: str | None,
) -> Coordination:
    """Return who coordinates the engines, connected to what *membership* notices.

    Args:
        membership: The engines of one client.
        listeners: Of our own coordinator; None: we have none.
        owns_handshake: Whether we tell engines whom to ask. If not, they may tell us.
        engine_count: Engines to coordinate, all of the deployment.
        address: Where the coordinator of somebody else publishes, if that is known.
    """
    if listeners is not None:
        own = Coordinator(engine_count)
        own.on_loads(_LoadTaker(membership))
        WaveNews(membership, own)
        return own
    if owns_handshake and address is None:
        nobody = NoWaves()
        WaveNews(membership, nobody)
        return nobody
    subscription = CoordinatorSubscription(tuple(membership.ranks), address)
    subscription.on_loads(_LoadTaker(membership))
    WaveNews(membership, subscription)
    return subscription


class WaveNews:
    """Tells ``Waves`` which engines come and go."""

    def __init__(self, membership: Membership, waves: Waves) -> None:
        self._membership = membership
        self._waves = waves
        self._known: dict[int, Registration] = {}
        membership.on_change(self._look)
        membership.on_loss(self._note_loss)

    def _look(self) -> None:
        for rank, engine in self._membership.ranks.items():
            registration = engine.registration
            if registration is None or not engine.state.connected:
                continue
            if self._known.get(rank) is not registration:
                self._known[rank] = registration
                self._waves.engine_joined(rank, registration)

    def _note_loss(self, engine: EngineRank) -> None:
        if self._known.pop(engine.rank, None) is not None:
            self._waves.engine_lost(engine.rank)


class _LoadTaker:
    """Gives the loads that a coordinator knows to those who balance.

    Where several frontends share engines, each hears only a part of what engines say about
    themselves; the coordinator hears all.
    """

    def __init__(self, membership: Membership) -> None:
        self._ranks = membership.ranks

    def __call__(self, loads: Mapping[int, EngineLoad]) -> None:
        for rank, load in loads.items():
            engine = self._ranks.get(rank)
            if engine is not None and engine.state.connected:
                engine.load.report(load.running, load.waiting)
