"""What a supervisor's children are, as frozen values."""

import enum
from typing import Protocol

import attrs
import trio
from attrs import validators

from vllmfront.supervisor._snapshot import SupervisorSnapshot


class Run(Protocol):
    """The body of a child, called anew for each incarnation."""

    async def __call__(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Work until *stop* is set, or cancelled.

        Calls ``task_status.started()`` once it can do its work, or answer honestly that it cannot
        yet; children that start after it count on that. Everything that an incarnation uses is
        made in here: nothing of the one before can be used again.
        """


class Restart(enum.Enum):
    """When a child that has ended is started again."""

    PERMANENT = enum.auto()  # always: a clean return counts as a failure
    TRANSIENT = enum.auto()  # only after a failure
    TEMPORARY = enum.auto()  # never


class Subtree(Protocol):
    """A supervisor that is a child's body, as its parent sees it."""

    def snapshot(self) -> SupervisorSnapshot:
        """Show it as it is now."""


CANCEL_BUDGET = 15.0
"""Seconds a cancelled child may clean up: above the bounded clean-ups of all that we run."""


@attrs.frozen(kw_only=True)
class ChildSpec:
    """How one child starts, stops and comes back; no running state in here."""

    name: str = attrs.field(validator=validators.matches_re(r"[a-z][a-z0-9-]*"))
    run: Run
    restart: Restart = Restart.PERMANENT
    start_budget: float = attrs.field(default=60.0, validator=validators.gt(0))
    """Seconds from spawn to ``started()``; past it the start has failed. May be infinite."""

    stop_budget: float = attrs.field(default=5.0, validator=validators.ge(0))
    """Seconds from the request to stop until the child is cancelled."""

    cancel_budget: float = attrs.field(default=CANCEL_BUDGET, validator=validators.ge(0))
    """Seconds from there until it counts as stuck."""

    significant: bool = attrs.field(default=False)
    """Whether its end, which is not followed by another start, ends its supervisor as well."""

    subtree: Subtree | None = None
    """The supervisor that *run* belongs to, if it is one; see ``Supervisor.as_child``."""

    @property
    def may_leave(self) -> bool:
        """Whether the others go on without it when it has failed."""
        return self.restart is Restart.TEMPORARY and not self.significant

    @significant.validator
    def _check_significant(self, _: object, significant: bool) -> None:
        if significant and self.restart is Restart.PERMANENT:
            raise ValueError(
                f"{self.name} is permanent, so it never ends for good: it cannot be significant"
            )
