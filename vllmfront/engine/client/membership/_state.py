"""Where a client and its engines stand, as a table and as levels that observers can wait for.

A rank loads, is told what it has to know before it gets requests, serves, may fall silent, and is
lost; a new process of it begins anew. Of a client
only the best of its ranks counts, and its past: whoever has served before is *recovering* when
nobody serves, and *loading* until then. It has failed once somebody gives it up, for good.
"""

import enum
from collections.abc import Callable, Collection

import trio

from vllmfront.errors import VllmFrontError


class RankState(enum.Enum):
    """Of one engine rank."""

    LOADING = "loading"
    PREPARING = "preparing"
    """Connected, but not yet told all that others of its kind know: see ``RankSetup``."""

    READY = "ready"
    STALLED = "stalled"
    """Connected, but silent about what it works on."""

    DEAD = "dead"
    """Lost; a new process may take its place."""

    @property
    def connected(self) -> bool:
        """Whether messages can be sent."""
        return self in _CONNECTED


_CONNECTED = frozenset({RankState.PREPARING, RankState.READY, RankState.STALLED})


class RankEvent(enum.Enum):
    """What happens to a rank."""

    STARTED = "started"
    """A new process says HELLO, or is known to come."""

    JOINED = "joined"
    PREPARED = "prepared"
    SILENT = "silent"
    HEARD = "heard"
    LOST = "lost"
    RETURNED = "returned"
    """The same process is connected again."""


_NEXT = {
    (RankState.LOADING, RankEvent.STARTED): RankState.LOADING,
    (RankState.LOADING, RankEvent.JOINED): RankState.PREPARING,
    (RankState.LOADING, RankEvent.LOST): RankState.DEAD,
    (RankState.PREPARING, RankEvent.PREPARED): RankState.READY,
    (RankState.PREPARING, RankEvent.LOST): RankState.DEAD,
    (RankState.READY, RankEvent.SILENT): RankState.STALLED,
    (RankState.READY, RankEvent.LOST): RankState.DEAD,
    (RankState.STALLED, RankEvent.HEARD): RankState.READY,
    (RankState.STALLED, RankEvent.LOST): RankState.DEAD,
    (RankState.DEAD, RankEvent.STARTED): RankState.LOADING,
    # Only the connection of its handshake had ended.
    (RankState.DEAD, RankEvent.JOINED): RankState.PREPARING,
    (RankState.DEAD, RankEvent.RETURNED): RankState.PREPARING,
}


def next_rank_state(state: RankState, event: RankEvent) -> RankState:
    """Return the state after *event*.

    Raises:
        ValueError: It cannot happen in *state*.
    """
    try:
        return _NEXT[state, event]
    except KeyError:
        raise ValueError(f"a rank that is {state.value} cannot be {event.value}") from None


class EngineState(enum.Enum):
    """Of all engines of a client together."""

    LOADING = "loading"
    """None has served yet."""

    READY = "ready"
    STALLED = "stalled"
    """Those that are connected are all silent about what they work on."""

    RECOVERING = "recovering"
    """None serves now; they did before, and may again."""

    FAILED = "failed"
    """Somebody has given up, for good."""


def client_state(
    ranks: Collection[RankState], *, has_served: bool, given_up: bool = False
) -> EngineState:
    """Return the state of a client whose ranks are in these states.

    Args:
        ranks: One for each expected rank.
        has_served: Whether the client was READY before. The first time it is when no rank is
            on its way.
        given_up: Whether somebody has given up.
    """
    if given_up:
        return EngineState.FAILED
    if RankState.READY in ranks and (has_served or not _ON_THEIR_WAY & set(ranks)):
        return EngineState.READY
    if not has_served:
        return EngineState.LOADING
    return EngineState.STALLED if RankState.STALLED in ranks else EngineState.RECOVERING


_ON_THEIR_WAY = frozenset({RankState.LOADING, RankState.PREPARING})


class StateLevel:
    """A client's present state, why it is so, and whether any engine is left."""

    def __init__(self) -> None:
        self._value = EngineState.LOADING
        self._since = trio.current_time()
        self._error: VllmFrontError | None = None
        self._lost: VllmFrontError | None = None
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<StateLevel {self._value.value}{f': {self._error}' if self._error else ''}>"

    @property
    def value(self) -> EngineState:
        return self._value

    @property
    def since(self) -> float:
        """When the state became what it is, by Trio's clock."""
        return self._since

    @property
    def error(self) -> VllmFrontError | None:
        """What ended the last READY: the first cause, which later ones do not replace.

        A stall ends nothing: what follows it does.
        """
        return self._error

    async def wait(self, predicate: Callable[[EngineState], bool]) -> EngineState:
        """Return the first state that satisfies *predicate*, which is asked at each change."""
        while not predicate(self._value):
            await self._changed.wait()
        return self._value

    async def wait_lost(self) -> VllmFrontError:
        """Return why no rank serves or loads, once that is so."""
        while self._lost is None:
            await self._changed.wait()
        return self._lost

    def set(
        self,
        value: EngineState,
        error: VllmFrontError | None = None,
        lost: VllmFrontError | None = None,
    ) -> None:
        """Change to *value*.

        Args:
            value: The state now.
            error: Why it is not READY; forgotten where an earlier cause than a stall is known.
            lost: Why no rank serves or loads; None where one does.
        """
        changes = value is not self._value
        if value is EngineState.READY:
            self._error = None
        elif self._error is None or (
            changes and (value is EngineState.FAILED or self._value is EngineState.STALLED)
        ):
            self._error = error
        if not changes and lost is self._lost:
            return
        if changes:
            self._value, self._since = value, trio.current_time()
        self._lost = lost
        changed, self._changed = self._changed, trio.Event()
        changed.set()
