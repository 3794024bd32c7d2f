"""Who is affected by an end, and who may start: pure."""

import enum
from collections.abc import Collection, Sequence

import attrs

from vllmfront.supervisor._state import UP_OR_GONE, ChildState


class Strategy(enum.Enum):
    """Whom a failing child takes along."""

    ONE_FOR_ONE = enum.auto()  # nobody: children do not know each other
    ONE_FOR_ALL = enum.auto()  # all: they share what must be rebuilt together
    REST_FOR_ONE = enum.auto()  # those after it: each counts on the ones before


@attrs.frozen
class Incident:
    """Failures that count as one, and the children that are started again because of them.

    Children are named by their place in the order of start.
    """

    failed: tuple[int, ...]
    affected: tuple[int, ...]
    """In the order of start; the failed ones are among them."""


def incidents(strategy: Strategy, failed: Collection[int], count: int) -> tuple[Incident, ...]:
    """Sort failures that were seen at once, of *count* children, into incidents."""
    places = tuple(sorted(failed))
    if not places:
        return ()
    if strategy is Strategy.ONE_FOR_ONE:
        return tuple(Incident((place,), (place,)) for place in places)
    first = 0 if strategy is Strategy.ONE_FOR_ALL else places[0]
    return (Incident(places, tuple(range(first, count))),)


@attrs.frozen
class Candidate:
    """A child's claim to be started."""

    state: ChildState
    due: float | None
    """When it may be started again, if it waits for that."""

    def may_start(self, now: float) -> bool:
        if self.state is ChildState.NEW:
            return True
        return self.state is ChildState.BACKOFF and self.due is not None and self.due <= now


def may_start(candidates: Sequence[Candidate], now: float, *, ordered: bool) -> tuple[int, ...]:
    """Name those who may start now: in order, none before all ahead of it are up or gone."""
    if not ordered:
        return tuple(place for place, each in enumerate(candidates) if each.may_start(now))
    for place, each in enumerate(candidates):
        if each.state not in UP_OR_GONE:
            return (place,) if each.may_start(now) else ()
    return ()
