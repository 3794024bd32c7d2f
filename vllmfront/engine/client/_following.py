"""Follows a client of another process of the same server, which does the handshake for both.

What engines say in it, and what becomes of their processes, is told by that one. Our own sockets
tell who is connected to us: an engine serves here once both are so.
"""

import logging

import trio

from vllmfront.engine.client.membership import (
    EngineRank,
    EngineView,
    GivenUp,
    Membership,
    RankState,
    RankView,
)
from vllmfront.engine.handshake import rank_of
from vllmfront.engine.transport import Message
from vllmfront.engine.wire import Registration, decode_registration
from vllmfront.errors import EngineDied, EngineUnavailable, Reason, VllmFrontError

_LOGGER = logging.getLogger(__name__)

_POLL = 0.01
"""Seconds between two looks for engines that connect; nothing tells of a peer's identity."""

_SERVES = frozenset({RankState.READY.value, RankState.STALLED.value})


class Following:
    """What we know of the engines by hearsay; ``serve`` is its task."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._views: dict[int, RankView] = {}
        """Of engines that serve there and not here yet."""

        self._joined: dict[int, int] = {}
        """The incarnation that has joined here last, by rank."""

        self._registered: dict[int, Registration] = {}
        """What engines said over a connection of ours, by rank."""

        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<Following {len(self._joined)} engines, {len(self._views)} are to come>"

    def take_registration(self, message: Message) -> int:
        """Note what an engine says on our input socket; return its rank.

        Raises:
            ProtocolError: It is no registration of an expected engine.
        """
        rank = rank_of(message, self._membership.ranks)
        self._registered[rank] = decode_registration(message[1].bytes)
        return rank

    def take(self, view: EngineView) -> None:
        """Take note of how things are at the other client."""
        for one in view.ranks:
            engine = self._membership.ranks.get(one.rank)
            if engine is not None:
                self._take_rank(engine, one)
        self._membership.ending = view.ending
        if view.given_up is not None:
            self._membership.give_up(_error_of(view.given_up))

    def _take_rank(self, engine: EngineRank, view: RankView) -> None:
        self._views.pop(engine.rank, None)
        if view.load_seconds is not None:
            engine.load_seconds = view.load_seconds
        if view.state in _SERVES:
            if self._joined.get(engine.rank) != view.incarnation:
                self._views[engine.rank] = view
                self._news.set()
        elif view.state == RankState.DEAD.value:
            self._take_death(engine, view)
        elif self._loads_anew(engine, view):
            self._membership.engine_expected(engine.rank)
        if view.start_in is not None:
            self._membership.engine_delayed(engine.rank, trio.current_time() + view.start_in)

    def _loads_anew(self, engine: EngineRank, view: RankView) -> bool:
        """Tell whether the process that has joined here is not the one that loads there."""
        joined = self._joined.get(engine.rank)
        return joined != view.incarnation and engine.state is not RankState.LOADING

    def _take_death(self, engine: EngineRank, view: RankView) -> None:
        if engine.state is RankState.LOADING:
            self._membership.engine_arrived(engine.rank)
        if engine.state is RankState.LOADING or not self._membership.is_connected(engine):
            self._membership.lose(engine, EngineDied(view.error or f"engine {engine.rank} is gone"))

    async def serve(self) -> None:
        """Let engines join as soon as they are connected to us, until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._views:
                for rank, view in list(self._views.items()):
                    if self._membership.is_connected(self._membership.ranks[rank]):
                        del self._views[rank]
                        self._join(rank, view)
                if self._views:
                    await trio.sleep(_POLL)

    def _join(self, rank: int, view: RankView) -> None:
        engine = self._membership.ranks[rank]
        registration = decode_registration(view.registration or b"")
        own = self._registered.get(rank)
        known = own is not None and own.instance_id == registration.instance_id
        # The connection that it registered over with us, if we have heard that.
        descriptor = engine.descriptor if known else None
        self._joined[rank] = view.incarnation
        self._membership.engine_arrived(rank)
        engine.descriptor = descriptor
        engine.unplaced = descriptor is None
        self._membership.engine_joined(rank, registration, prepared=True)


def _error_of(given_up: GivenUp) -> VllmFrontError:
    if given_up.draining:
        return EngineUnavailable(given_up.text, reason=Reason.DRAINING)
    return EngineDied(given_up.text)
