"""Requests of one session go to the same rank, which has what was said before in its cache."""

import hashlib
from collections.abc import Sequence

from vllmfront.engine._request import EngineRequest
from vllmfront.engine.routing._load import C, Candidate, least_loaded
from vllmfront.engine.routing._overload import not_overloaded
from vllmfront.engine.routing._rendezvous import rendezvous

MAX_SESSIONS = 100_000
"""That are remembered; those that were silent for longest are forgotten, and begin anew."""


class SessionRouting:
    """Prefers the rank that a session was at, unless that is overloaded."""

    def __init__(self, *, shared: bool = False) -> None:
        """Know of no session yet.

        Args:
            shared: Whether other clients route requests to the same ranks. A session that is new
                to us then goes where it would go if it came to them.
        """
        self._shared = shared
        self._homes: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<SessionRouting of {len(self._homes)} sessions>"

    def choose(self, candidates: Sequence[C], request: EngineRequest) -> C:
        """Return which of *candidates*, of which there is one, gets *request*."""
        session = request.session_id
        if session is None:
            return least_loaded(candidates)
        fit = not_overloaded(candidates)
        home = self._homes.get(session)
        for candidate in fit:
            if candidate.rank == home:
                return candidate
        return rendezvous(fit, session_key(session)) if self._shared else least_loaded(candidates)

    def sent(self, candidate: Candidate, request: EngineRequest) -> None:
        """Take note that *candidate* gets *request*."""
        session = request.session_id
        if session is not None:
            self._homes.pop(session, None)
            self._homes[session] = candidate.rank
            if len(self._homes) > MAX_SESSIONS:
                del self._homes[next(iter(self._homes))]

    def forget(self, rank: int) -> None:
        """Take note of a new process of *rank*: sessions that were there are free to go."""
        self._homes = {name: home for name, home in self._homes.items() if home != rank}


def session_key(session: str) -> int:
    """Return 64 bits for a session, the same in every process."""
    data = session.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
