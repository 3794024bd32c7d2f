"""Bringing engines to where a hold wants them: those that serve, and each that joins meanwhile."""

from collections.abc import Collection, Sequence
from itertools import groupby

import trio

from vllmfront.engine.client.membership import EngineRank, Membership
from vllmfront.engine.client.orders._utility import Outcome, UtilityCalls
from vllmfront.engine.pause import EngineOrder, Hold, HoldGate, HoldKind

SETUP_SECONDS = 600.0
"""For an engine to take a hold as it joins. Those in lockstep do so together, and some may need
long to load."""

_Told = tuple[int, tuple[tuple[HoldKind, tuple[EngineOrder, ...]], ...]]
"""Which process of a rank, and what it was told."""


class HoldSetup:
    """A ``RankSetup``: an engine that joins is held before it gets requests.

    One that was only cut off, and has missed the end of a hold, is told to go on.
    """

    def __init__(self, gate: HoldGate, calls: UtilityCalls, membership: Membership) -> None:
        self._gate = gate
        self._calls = calls
        self._membership = membership
        self._told: dict[int, _Told] = {}

    def due(self, rank: int) -> bool:
        """Whether engine *rank* is not where the holds of this moment want it."""
        engine = self._membership.ranks[rank]
        incarnation, told = self._told.get(rank, (0, ()))
        return self._wanted(engine) != (told if incarnation == engine.incarnation else ())

    async def apply(self, rank: int) -> None:
        """Tell engine *rank*.

        Raises:
            VllmFrontError: It refused, or did not answer.
        """
        engine = self._membership.ranks[rank]
        wanted = self._wanted(engine)
        incarnation, told = self._told.get(rank, (0, ()))
        if incarnation == engine.incarnation:
            for order in _lifting({kind for kind, _ in told}, {kind for kind, _ in wanted}):
                await self._call(order, engine)
        for _, orders in wanted:
            for order in orders:
                await self._call(order, engine)
        self._told[rank] = (engine.incarnation, wanted)

    async def order(self, hold: Hold, ranks: Sequence[EngineRank]) -> list[Outcome]:
        """Tell all of *ranks* at once what *hold* wants of them; one that is lost is told later."""
        outcomes: list[Outcome] = []

        async def tell(order: EngineOrder, group: Sequence[EngineRank]) -> None:
            outcomes.extend(
                await self._calls.call_ranks_each(
                    group, order.method, order.args, None, wait_for_all=True
                )
            )

        processes = {rank: rank.incarnation for rank in ranks}
        # Ranks in lockstep stand still only once all were told: none may wait for another.
        async with trio.open_nursery() as nursery:
            for version, group in groupby(ranks, _version):
                nursery.start_soon(tell, hold.order(version), list(group))
        # A process that has come meanwhile is told when it joins.
        self.note([rank for rank, process in processes.items() if rank.incarnation == process])
        return outcomes

    def note(self, ranks: Collection[EngineRank]) -> None:
        """Take note that *ranks* are where the holds of this moment want them."""
        for engine in ranks:
            self._told[engine.rank] = (engine.incarnation, self._wanted(engine))

    def note_unsure(self, ranks: Collection[EngineRank]) -> None:
        """Take note that *ranks* may be where the holds want them: another process has told them.

        They are told again as they join, or to go on if there is no hold any more by then.
        """
        kinds: tuple[tuple[HoldKind, tuple[EngineOrder, ...]], ...]
        kinds = tuple((hold.kind, ()) for hold in self._gate.holds)
        for engine in ranks:
            self._told[engine.rank] = (engine.incarnation, kinds)

    def _wanted(self, engine: EngineRank) -> tuple[tuple[HoldKind, tuple[EngineOrder, ...]], ...]:
        version = _version(engine)
        return tuple((hold.kind, hold.orders(version)) for hold in self._gate.holds)

    async def _call(self, order: EngineOrder, engine: EngineRank) -> None:
        await self._calls.call(order.method, order.args, [engine.rank], SETUP_SECONDS)


def _lifting(told: set[HoldKind], wanted: set[HoldKind]) -> list[EngineOrder]:
    """Return what undoes what an engine was told and nobody wants any more."""
    if HoldKind.SLEEP in told - wanted:
        return [EngineOrder("wake_up", (None,))]  # which makes it go on as well
    if HoldKind.PAUSE in told - wanted and HoldKind.SLEEP not in wanted:
        return [EngineOrder("resume_scheduler", ())]
    return []


def _version(engine: EngineRank) -> str | None:
    return None if engine.registration is None else engine.registration.vllm_version
