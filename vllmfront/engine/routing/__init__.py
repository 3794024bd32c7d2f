"""Which engine rank gets a request."""

from vllmfront.engine.routing._load import WAITING_WEIGHT, Candidate, RankLoad, least_loaded
from vllmfront.engine.routing._overload import not_overloaded
from vllmfront.engine.routing._policy import Routing, RoutingPolicy, make_routing
from vllmfront.engine.routing._prefix import PrefixRouting
from vllmfront.engine.routing._session import SessionRouting

__all__ = [
    "WAITING_WEIGHT",
    "Candidate",
    "PrefixRouting",
    "RankLoad",
    "Routing",
    "RoutingPolicy",
    "SessionRouting",
    "least_loaded",
    "make_routing",
    "not_overloaded",
]
