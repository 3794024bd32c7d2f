"""Takes up engines that run already: those of a frontend that has stopped, or was killed.

They reconnect by themselves, and say nothing then. Who is connected again is told to drop what it
was working on, since nobody waits for that, and serves from then on. Who does not connect in time
is waited for no longer, so that what was saved never keeps a start from working; should it come
after all, it is taken up then. And whoever says HELLO is a new process, which replaces it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from vllmfront.engine.client.entrance._saved import SavedEngine
from vllmfront.engine.client.membership import EngineRank, Membership, RankState
from vllmfront.engine.client.orders import UtilityCalls
from vllmfront.engine.handshake import Roster
from vllmfront.errors import EngineDied, UtilityCallFailed, UtilityCallTimeout, VllmFrontError

_LOGGER = logging.getLogger(__name__)

REACH_BUDGET = 10.0
"""Seconds for engines to reconnect; they try every 100 ms."""

ANSWER_BUDGET = 60.0
"""Seconds for each answer; it comes between two steps, and a step may have to be compiled first."""

_POLL = 0.05
"""Seconds between two looks for engines that reconnect: nothing tells of a peer's identity."""

_LATE_POLL = 1.0
"""As above, once nobody waits for them any more."""


class Attachment:
    """The engines of an earlier frontend; ``serve`` is its task."""

    def __init__(
        self,
        saved: Mapping[int, SavedEngine],
        *,
        roster: Roster,
        membership: Membership,
        calls: UtilityCalls,
    ) -> None:
        self.awaited = {n: one for n, one in saved.items() if n in membership.ranks}
        """Those that were not taken up yet, by rank."""

        self.settled = trio.Event()
        """Set when nobody waits for them any more."""

        self._roster = roster
        self._membership = membership
        self._calls = calls
        self._busy = set[int]()
        self._save: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Attachment awaiting {sorted(self.awaited)}>"

    def begin(self, save: Callable[[], None]) -> None:
        """Expect the engines; *save* keeps ``awaited`` for whoever follows us."""
        self._save = save
        # One that was loading has said HELLO to the frontend before us, and registers here.
        self._roster.shared = True
        for rank, one in self.awaited.items():
            self._membership.engine_awaited(rank)
            if one.connected:
                self._roster.inherit(rank, one.registration)
            else:
                error = EngineDied(f"engine {rank} was lost before this frontend was started")
                self._membership.lose(self._membership.ranks[rank], error)
        if self.awaited:
            ranks = ", ".join(map(str, sorted(self.awaited)))
            _LOGGER.info("Expecting engine %s of an earlier frontend to reconnect", ranks)

    async def serve(self) -> None:
        """Take up engines until none is awaited, or cancelled."""
        deadline = trio.current_time() + REACH_BUDGET
        async with trio.open_nursery() as nursery:
            while self.awaited:
                self._forget_replaced()
                self._take_up_connected(nursery, trio.current_time() < deadline)
                if not self.settled.is_set():
                    self._settle(trio.current_time() >= deadline)
                await trio.sleep(_LATE_POLL if self.settled.is_set() else _POLL)
        self.settled.set()

    def _forget_replaced(self) -> None:
        for rank in list(self.awaited):
            if self._membership.ranks[rank].incarnation > 1:
                del self.awaited[rank]

    def _settle(self, late: bool) -> None:
        """Wait no longer for those that do not connect, if it is *late*."""
        silent = [
            engine
            for engine in map(self._membership.ranks.__getitem__, self.awaited)
            if engine.rank not in self._busy and engine.state is RankState.LOADING
        ]
        if late:
            for engine in silent:
                why = f"engine {engine.rank} of an earlier frontend did not reconnect within "
                self._lose(engine, EngineDied(f"{why}{REACH_BUDGET:g} s"))
        if late or not (silent or self._busy):
            self.settled.set()

    def _take_up_connected(self, nursery: trio.Nursery, patient: bool) -> None:
        idle = [rank for rank in self.awaited if rank not in self._busy]
        engines = [self._membership.ranks[rank] for rank in idle]
        connected = [engine for engine in engines if self._membership.is_connected(engine)]
        coupled = any((one.registration.data_parallel_size or 1) > 1 for one in self._saved(idle))
        if coupled and patient and len(connected) < len(engines):
            return  # ranks that step together pause together, or not at all
        for group in [connected] if coupled else [[each] for each in connected]:
            if group:
                self._busy.update(engine.rank for engine in group)
                nursery.start_soon(self._take_up, group)

    def _saved(self, ranks: Sequence[int]) -> list[SavedEngine]:
        return [self.awaited[rank] for rank in ranks]

    async def _take_up(self, engines: Sequence[EngineRank]) -> None:
        try:
            for engine in engines:
                if engine.state is RankState.DEAD:
                    self._membership.engine_awaited(engine.rank)
            await self._drop_work(engines)
        except VllmFrontError as error:
            for engine in engines:
                if self._is_same(engine):
                    self._lose(engine, error)
        else:
            for engine in engines:
                if self._is_same(engine):
                    self._join(engine)
        finally:
            self._busy.difference_update(engine.rank for engine in engines)

    def _is_same(self, engine: EngineRank) -> bool:
        return engine.incarnation == 1 and engine.state is RankState.LOADING

    def _join(self, engine: EngineRank) -> None:
        saved = self.awaited.pop(engine.rank)
        _LOGGER.info("Engine %d runs already, and goes on from here", engine.rank)
        self._roster.inherit(engine.rank, saved.registration)
        # Its connection cannot be told from others: it registered long ago.
        engine.unplaced = True
        self._membership.engine_joined(engine.rank, saved.registration)

    def _lose(self, engine: EngineRank, error: VllmFrontError) -> None:
        self._roster.forget(engine.rank)
        self._membership.lose(engine, error)

    async def _drop_work(self, engines: Sequence[EngineRank]) -> None:
        """Make *engines* drop all requests, and leave them paused if somebody had paused them.

        Raises:
            UtilityCallTimeout: One does not answer.
            EngineDied: One is gone.
        """
        paused = await self._ask(engines, "is_scheduler_paused")
        ours = [
            engine
            for engine, is_paused in zip(engines, paused, strict=True)
            if not is_paused or self.awaited[engine.rank].paused_by_us
        ]
        # Should we be killed between pause and resume, whoever follows us must know.
        for engine in ours:
            saved = self.awaited[engine.rank]
            self.awaited[engine.rank] = attrs.evolve(saved, paused_by_us=True)
        self._save()
        await self._ask(engines, "pause_scheduler", "abort", False)  # noqa: FBT003 - by position alone
        await self._ask(ours, "resume_scheduler")
        for engine in engines:
            if engine not in ours:
                _LOGGER.warning("Engine %d was left paused, and stays so", engine.rank)

    async def _ask(
        self, engines: Sequence[EngineRank], method: str, *args: object
    ) -> Sequence[object]:
        """Call *method* of *engines*; one that cannot do it costs a line in the log."""
        try:
            return await self._calls.call_ranks(engines, method, args, ANSWER_BUDGET)
        except UtilityCallTimeout:
            raise
        except UtilityCallFailed as error:
            _LOGGER.warning("An engine of an earlier frontend refused %s: %s", method, error)
            return [False] * len(engines)
