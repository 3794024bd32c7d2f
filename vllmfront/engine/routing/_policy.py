"""The ways to choose a rank, and what each of them has to know."""

import enum
from collections.abc import Sequence
from typing import Protocol

from vllmfront.engine._request import EngineRequest
from vllmfront.engine.routing._load import C, Candidate, least_loaded
from vllmfront.engine.routing._prefix import PrefixRouting
from vllmfront.engine.routing._session import SessionRouting


class RoutingPolicy(enum.StrEnum):
    """By what a rank is chosen, under the name that users give."""

    LEAST_LOADED = "least-loaded"
    PREFIX = "prefix"
    """The rank that has the prompt's beginning in its cache, unless it is overloaded."""

    SESSION = "session"
    """The rank that served the session before, unless it is overloaded."""


class Routing(Protocol):
    """Chooses ranks for requests that name none."""

    def choose(self, candidates: Sequence[C], request: EngineRequest) -> C:
        """Return which of *candidates*, of which there is one, gets *request*."""

    def sent(self, candidate: Candidate, request: EngineRequest) -> None:
        """Take note that *candidate* gets *request*, chosen or named."""

    def forget(self, rank: int) -> None:
        """Take note of a new process of *rank*."""


class LeastLoadedRouting:
    """Looks at nothing but load."""

    def choose(self, candidates: Sequence[C], request: EngineRequest) -> C:
        del request
        return least_loaded(candidates)

    def sent(self, candidate: Candidate, request: EngineRequest) -> None:
        """Loads count that themselves."""

    def forget(self, rank: int) -> None:
        """Nothing is known of it."""


def make_routing(policy: RoutingPolicy, *, shared: bool = False) -> Routing:
    """Return what chooses by *policy*; *shared*: other clients use the same ranks."""
    if policy is RoutingPolicy.PREFIX:
        return PrefixRouting(shared=shared)
    if policy is RoutingPolicy.SESSION:
        return SessionRouting(shared=shared)
    return LeastLoadedRouting()
