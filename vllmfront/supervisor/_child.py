"""One child: its state, and the incarnation that runs."""

import math
from collections.abc import Callable

import attrs
import trio

from vllmfront.supervisor._failures import failure_text
from vllmfront.supervisor._level import Level
from vllmfront.supervisor._spec import ChildSpec
from vllmfront.supervisor._state import RUNNING, ChildState, check_transition


@attrs.define(eq=False)
class Incarnation:
    """One run of a child's body; everything in it is made anew and used once."""

    spec: ChildSpec
    generation: int
    begun: float
    on_ready: Callable[[], None]
    on_end: Callable[["Incarnation"], None]
    stop: trio.Event = attrs.field(factory=trio.Event, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    scope: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True), init=False)
    """Shielded: only the supervisor ends its children. It does so within their budgets."""

    ready_at: float | None = attrs.field(default=None, init=False)
    ended_at: float | None = attrs.field(default=None, init=False)
    failure: Exception | None = attrs.field(default=None, init=False)
    task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    stop_by: float = attrs.field(default=math.inf, init=False)
    """When it is cancelled; set once, with the request to stop."""

    end_by: float = attrs.field(default=math.inf, init=False)
    """When it counts as stuck; set once, when it is cancelled."""

    @property
    def start_by(self) -> float:
        return self.begun + self.spec.start_budget

    @property
    def uptime(self) -> float:
        """Seconds for which it was ready, once it has ended."""
        if self.ready_at is None or self.ended_at is None:
            return 0.0
        return self.ended_at - self.ready_at

    def started(self, value: None = None) -> None:
        """Take the body's word that it can answer: this is its task status.

        Raises:
            RuntimeError: It has said so before.
        """
        del value
        if self.ready_at is not None:
            raise RuntimeError(f"{self.spec.name} reported itself started twice")
        if self.ended.is_set():
            return  # the task status has outlived its body
        self.ready_at = trio.current_time()
        self.on_ready()

    async def run(self) -> None:
        """Run the body and note how it ended; the named edge for its errors.

        What is no ``Exception`` passes: the end of the program, and cancellation from outside.
        """
        self.task = trio.lowlevel.current_task()
        try:
            with self.scope:
                await self.spec.run(self.stop, task_status=self)
        except Exception as exc:  # noqa: BLE001 - a child's edge: the policy decides
            self.failure = exc
        finally:
            self.task = None
            self.ended_at = trio.current_time()
            self.ended.set()
            self.on_end(self)


@attrs.define(eq=False)
class Child:
    """A child over all its incarnations under one run of its supervisor."""

    spec: ChildSpec
    level: Level[ChildState]
    on_change: Callable[[], None]
    since: float | None = None
    generation: int = attrs.field(default=0, init=False)
    due: float | None = attrs.field(default=None, init=False)
    """When it is started again; set in BACKOFF and nowhere else."""

    incarnation: Incarnation | None = attrs.field(default=None, init=False)
    """The last one."""

    first_failure: str | None = attrs.field(default=None, init=False)
    last_failure: str | None = attrs.field(default=None, init=False)

    def __repr__(self) -> str:
        return f"<Child {self.spec.name} {self.state.name}, generation {self.generation}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_starting(self) -> bool:
        return self.state is ChildState.STARTING

    @property
    def current(self) -> Incarnation:
        """The last incarnation; there must have been one."""
        assert self.incarnation is not None
        return self.incarnation

    @property
    def state(self) -> ChildState:
        return self.level.value

    def enter(self, state: ChildState, due: float | None = None) -> None:
        """Take one step of the table; *due* belongs to BACKOFF."""
        check_transition(self.state, state)
        self.since, self.due = trio.current_time(), due
        self.level.set(state)
        self.on_change()

    def begin(
        self, on_ready: Callable[[], None], on_end: Callable[[Incarnation], None]
    ) -> Incarnation:
        """Make a new incarnation, which the caller runs."""
        self.generation += 1
        self.incarnation = Incarnation(
            self.spec, self.generation, trio.current_time(), on_ready, on_end
        )
        self.enter(ChildState.STARTING)
        return self.incarnation

    def cut_off(self) -> None:
        """Cancel what may be left, whatever its budget."""
        if self.incarnation is not None:
            self.incarnation.scope.cancel(reason=f"{self.name}'s supervisor has ended")

    def note(self, failure: Exception) -> str:
        """Remember a failure for operators; return it as text."""
        text = failure_text(failure)
        self.first_failure = self.first_failure or text
        self.last_failure = text
        return text


@attrs.frozen
class Exit:
    """A child's report that an incarnation of it has ended."""

    child: Child
    generation: int

    @property
    def counts(self) -> bool:
        """Whether it is news: not of a past incarnation, nor of one that was made to end."""
        return self.generation == self.child.generation and self.child.state in RUNNING
