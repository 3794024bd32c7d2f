"""What an engine is told whenever it joins, before it gets requests: what the others know already.

An engine that starts anew has forgotten what its predecessor was told, and one whose connection
was broken has missed what was said meanwhile. It stays PREPARING until nothing is due any more.
"""

import logging

import trio

from vllmfront.engine.client.membership._membership import Membership
from vllmfront.engine.client.membership._rank import EngineRank
from vllmfront.engine.client.membership._rank_setup import RankSetup
from vllmfront.engine.client.membership._state import RankState
from vllmfront.errors import EngineDied, VllmFrontError

_LOGGER = logging.getLogger(__name__)


class Setups:
    """Brings the engines that have joined to where they may serve; ``serve`` is its task."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._busy = set[EngineRank]()
        self._wake = trio.Event()
        membership.on_change(self._notice)

    async def serve(self) -> None:
        """Look after all engines until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for engine in self._membership.ranks.values():
                    if engine.state is RankState.PREPARING and engine not in self._busy:
                        self._busy.add(engine)
                        nursery.start_soon(self._bring, engine)
                await self._wake.wait()
                self._wake = trio.Event()

    def _notice(self) -> None:
        self._wake.set()

    async def _bring(self, engine: EngineRank) -> None:
        try:
            while engine.state is RankState.PREPARING:
                setup = self._membership.next_setup(engine)
                if setup is None:
                    self._membership.engine_prepared(engine)
                    return
                await self._apply(setup, engine)
        finally:
            self._busy.discard(engine)
            self._notice()

    async def _apply(self, setup: RankSetup, engine: EngineRank) -> None:
        incarnation = engine.incarnation
        try:
            await setup.apply(engine.rank)
        except VllmFrontError as error:
            if engine.incarnation == incarnation and engine.state is RankState.PREPARING:
                problem = EngineDied(f"engine {engine.rank} could not be set up: {error}")
                self._membership.lose(engine, problem)
            else:
                _LOGGER.debug("Engine %d was lost while it was being set up", engine.rank)
