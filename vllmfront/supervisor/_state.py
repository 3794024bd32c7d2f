"""Where a child is in its life, and which steps lead where: a table.

A child is NEW until its turn comes. STARTING, it has a task; its word that it can answer makes it
READY. An incarnation ends by itself (a failure, or a return) or because its supervisor wants it
to: then it is STOPPING, and STUCK if it does not end even when cancelled. What comes next is the
policy's decision: BACKOFF, a wait for the next incarnation; FAILED, never again; or STOPPED.

STOPPED is left again in one case: a transient child that had done its work is taken along by a
failing sibling, and does its work anew. FAILED is never left.
"""

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType


class ChildState(enum.Enum):
    """Where a child is in its life."""

    NEW = enum.auto()
    STARTING = enum.auto()
    READY = enum.auto()
    BACKOFF = enum.auto()
    """Waits for its next incarnation."""

    STOPPING = enum.auto()
    """Asked to stop, or cancelled."""

    STOPPED = enum.auto()
    FAILED = enum.auto()
    """Failed, and not started again."""

    STUCK = enum.auto()
    """Cancelled, and running on all the same."""


_S = ChildState

TRANSITIONS: Mapping[ChildState, frozenset[ChildState]] = MappingProxyType(
    {
        _S.NEW: frozenset({_S.STARTING}),
        _S.STARTING: frozenset({_S.READY, _S.BACKOFF, _S.STOPPING, _S.STOPPED, _S.FAILED}),
        _S.READY: frozenset({_S.BACKOFF, _S.STOPPING, _S.STOPPED, _S.FAILED}),
        _S.BACKOFF: frozenset({_S.STARTING, _S.STOPPED}),
        _S.STOPPING: frozenset({_S.BACKOFF, _S.STOPPED, _S.FAILED, _S.STUCK}),
        _S.STOPPED: frozenset({_S.BACKOFF}),
        _S.FAILED: frozenset(),
        _S.STUCK: frozenset({_S.STOPPED}),
    }
)
"""The states that each state may be followed by."""

RUNNING = frozenset({_S.STARTING, _S.READY})
"""An incarnation runs, and nobody wants it to end."""

ALIVE = RUNNING | {_S.STOPPING}
"""An incarnation runs that can be brought to its end."""

UP_OR_GONE = frozenset({_S.READY, _S.STOPPED, _S.FAILED})
"""Nothing that comes after the child in the order of start has to wait for it."""

IN_TRANSIT = frozenset({_S.STARTING, _S.STOPPING})
"""On the way up or down: time that says nothing about health."""


class IllegalTransition(AssertionError):
    """Raised for a step that the table does not have: a bug of the supervisor."""


def check_transition(before: ChildState, after: ChildState) -> None:
    """Let the steps of the table pass.

    Raises:
        IllegalTransition: It has no such step.
    """
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(f"a child cannot go from {before.name} to {after.name}")


def overall(states: Iterable[ChildState]) -> ChildState:
    """Sum up children that are to be up: READY when nothing is missing.

    What has ended for good, and was allowed to, is not missing.
    """
    present = set(states)
    if _S.STUCK in present:
        return _S.STUCK
    if present & {_S.NEW, _S.STARTING}:
        return _S.STARTING
    if present & {_S.BACKOFF, _S.STOPPING}:
        return _S.BACKOFF
    return _S.READY
