"""What operators see of a supervisor: frozen trees of one moment.

Times are monotonic seconds of the event loop's clock; failures are the texts of their errors.
"""

import attrs

from vllmfront.supervisor._state import ChildState
from vllmfront.supervisor._strategy import Strategy


@attrs.frozen(kw_only=True)
class ChildSnapshot:
    """One child at one moment."""

    name: str
    state: ChildState
    """That of its tree, where it is a supervisor that has reported itself started."""

    generation: int
    """Incarnations so far."""

    since: float | None
    """When the state began; None before its supervisor ran."""

    restarts: int
    """Restarts in the window that this child was the reason for."""

    next_try: float | None
    """When it is started again; None unless it waits for that."""

    first_failure: str | None
    """The one that began the trouble; kept until the supervisor itself is started anew."""

    last_failure: str | None
    tree: "SupervisorSnapshot | None" = None
    """Of the supervisor that is this child's body."""


@attrs.frozen(kw_only=True)
class SupervisorSnapshot:
    """A supervisor and its children at one moment, in the order of start."""

    name: str
    state: ChildState
    """READY when all children are; otherwise what is missing."""

    since: float | None
    strategy: Strategy
    restarts: int
    """In the window."""

    intensity: int
    """Restarts that the window tolerates."""

    period: float
    """Seconds of the window; the time that children take to start or to stop does not count."""

    next_try: float | None
    """When the first of the children that wait is started again."""

    children: tuple[ChildSnapshot, ...]
