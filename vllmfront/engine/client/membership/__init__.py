"""Which engines there are: how each stands, and what is told of them."""

from vllmfront.engine.client.membership._info import ClientSnapshot, EngineInfo, RankSnapshot
from vllmfront.engine.client.membership._membership import Membership
from vllmfront.engine.client.membership._rank import EngineRank
from vllmfront.engine.client.membership._setup import Setups
from vllmfront.engine.client.membership._state import EngineState, RankState
from vllmfront.engine.client.membership._view import EngineView, GivenUp, RankView, take_view

__all__ = [
    "ClientSnapshot",
    "EngineInfo",
    "EngineRank",
    "EngineState",
    "EngineView",
    "GivenUp",
    "Membership",
    "RankSnapshot",
    "RankState",
    "RankView",
    "Setups",
    "take_view",
]
