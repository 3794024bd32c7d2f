"""The engines of one client as it tells those of other processes, which did no handshake."""

import trio
from msgspec import Struct

from vllmfront.engine.client.membership._membership import Membership
from vllmfront.engine.client.membership._rank import EngineRank
from vllmfront.engine.wire import encode_registration
from vllmfront.errors import EngineUnavailable, VllmFrontError


class RankView(Struct, frozen=True, kw_only=True):
    """One engine."""

    rank: int
    state: str
    """A ``RankState``."""

    incarnation: int
    """Counts the processes that said HELLO."""

    registration: bytes | None
    """Of the newest process that has joined, as engines send it."""

    error: str | None
    start_in: float | None
    """Seconds until its next process is started, if somebody said so."""

    load_seconds: float | None
    """How long the last one that joined took to load."""


class GivenUp(Struct, frozen=True, kw_only=True):
    """That no engine will serve any more, and why."""

    text: str
    draining: bool
    """Whether the text is for clients: the server ends."""


class EngineView(Struct, frozen=True, kw_only=True):
    """All engines at one moment."""

    ranks: tuple[RankView, ...]
    ending: bool
    """Whether somebody has asked the engines to end."""

    given_up: GivenUp | None


def take_view(membership: Membership) -> EngineView:
    """Return how things are now."""
    return EngineView(
        ranks=tuple(_rank_view(engine) for engine in membership.ranks.values()),
        ending=membership.ending,
        given_up=_given_up(membership.given_up),
    )


def _rank_view(engine: EngineRank) -> RankView:
    registration, start_at = engine.registration, engine.start_at
    return RankView(
        rank=engine.rank,
        state=engine.state.value,
        incarnation=engine.incarnation,
        registration=None if registration is None else encode_registration(registration),
        error=None if engine.error is None else str(engine.error),
        start_in=None if start_at is None else max(0.0, start_at - trio.current_time()),
        load_seconds=engine.load_seconds,
    )


def _given_up(error: VllmFrontError | None) -> GivenUp | None:
    if error is None:
        return None
    return GivenUp(text=str(error), draining=isinstance(error, EngineUnavailable))
