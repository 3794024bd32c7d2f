"""What a supervisor's children are, as frozen values."""

import enum
from typing import Protocol

import attrs
import trio
from attrs import validators


class Run(Protocol):
    """The body of a child, called anew for each incarnation."""

    async def __call__(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Work until *stop* is set, or cancelled.

        Calls ``task_status.started()`` once it can do its work, or answer honestly that it cannot
        yet; children that start after it count on that.
        """


class Restart(enum.Enum):
    """When a child that has ended is started again."""

    PERMANENT = enum.auto()  # always: a clean return counts as a failure
    TRANSIENT = enum.auto()  # only after a failure
    TEMPORARY = enum.auto()  # never


@attrs.frozen(kw_only=True)
class ChildSpec:
    """How one child starts, stops and comes back; no running state in here."""

    name: str = attrs.field(validator=validators.matches_re(r"[a-z][a-z0-9-]*"))
    run: Run
    restart: Restart = Restart.PERMANENT
    start_budget: float = attrs.field(default=60.0, validator=validators.gt(0))
    """Seconds from spawn to ``started()``; past it the start has failed."""

    stop_budget: float = attrs.field(default=5.0, validator=validators.ge(0))
    """Seconds from the request to stop until the child is cancelled."""


class ChildState(enum.Enum):
    """Where a child is in its life."""

    NEW = enum.auto()
    STARTING = enum.auto()
    READY = enum.auto()
    STOPPING = enum.auto()
    STUCK = enum.auto()
    """Cancelled, and running on all the same."""

    STOPPED = enum.auto()
    FAILED = enum.auto()


@attrs.frozen(kw_only=True)
class ChildSnapshot:
    """One child at one moment, for operators."""

    name: str
    state: ChildState
    generation: int
    """Incarnations so far."""

    since: float
    """Monotonic seconds at which the state began."""

    last_failure: str | None


@attrs.frozen(kw_only=True)
class SupervisorSnapshot:
    """A supervisor and its children at one moment, in the order of start."""

    name: str
    restarts: int
    """In the window."""

    children: tuple[ChildSnapshot, ...]
