"""Interprets a table of child specs: ordered start, restarts, reverse stop.

The loop runs in the body of the nursery whose children it watches, and decides on exit reports
that the children leave; it waits for one child in particular only while it stops one, which takes
a bounded time. Children are shielded from outer cancellation, because cancelling an outer scope
reaches all tasks at once and would destroy the order; in exchange the supervisor stops each of
them itself.
"""

import logging
import math
import random as chances
from collections.abc import Callable, Sequence

import trio

from vllmfront.supervisor._child import Child
from vllmfront.supervisor._events import Event
from vllmfront.supervisor._level import Level
from vllmfront.supervisor._log import log_event
from vllmfront.supervisor._plan import Plan
from vllmfront.supervisor._policy import RestartPolicy
from vllmfront.supervisor._shutdown import Shutdown
from vllmfront.supervisor._snapshot import ChildSnapshot, SupervisorSnapshot
from vllmfront.supervisor._spec import ChildSpec, Restart
from vllmfront.supervisor._state import ChildState, overall
from vllmfront.supervisor._strategy import Strategy
from vllmfront.supervisor._tree import Tree

_LOGGER = logging.getLogger(__name__)

_MARGIN = 1.0
"""Seconds for a supervisor's own work around that of its children."""


class Supervisor:
    """Children with one policy; a supervisor may itself be the child of another."""

    def __init__(
        self,
        name: str,
        specs: Sequence[ChildSpec],
        policy: RestartPolicy,
        *,
        shutdown: Shutdown,
        strategy: Strategy = Strategy.ONE_FOR_ONE,
        handle: bool = False,
        on_event: Callable[[Event], None] | None = None,
        random: Callable[[], float] = chances.random,
    ) -> None:
        """Plan a supervisor, which :meth:`run` brings to life.

        Args:
            name: For operators, and as a child's name.
            specs: The children, in the order of their start.
            policy: How often and when they are restarted.
            shutdown: The program's end: once it is requested nothing is started any more, and its
                deadline bounds every stop.
            strategy: Whom a failing child takes along.
            handle: Whether to report itself started at once, while the children come up.
            on_event: Gets everything that happens, after it was logged; must not block.
            random: The source of jitter; returns numbers between 0 and 1.
        """
        if len({spec.name for spec in specs}) < len(specs):
            raise ValueError(f"the children of {name} need names of their own")
        self._plan = Plan(
            name=name,
            specs=tuple(specs),
            policy=policy,
            strategy=strategy,
            shutdown=shutdown,
            random=random,
            emit=self._emit,
        )
        self._handle = handle
        self._on_event = on_event
        self._state = Level(ChildState.NEW)
        self._since: float | None = None
        self._levels = {spec.name: Level(ChildState.NEW) for spec in specs}
        self._tree = Tree(self._plan, self._levels, self._refresh, None)
        self._running = False
        self._ending = False

    def __repr__(self) -> str:
        states = ", ".join(f"{child.name} {child.state.name}" for child in self._tree.children)
        return f"<Supervisor {self.name} {self.state.name}: {states}>"

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def state(self) -> ChildState:
        """READY when all children are; otherwise what is missing, or how it ended."""
        return self._state.value

    async def wait_state(self, *wanted: ChildState) -> ChildState:
        """Wait until the supervisor's state is one of *wanted*, and return it."""
        return await self._state.wait(*wanted)

    async def wait_child(self, name: str, *wanted: ChildState) -> ChildState:
        """Wait until the state of the child *name* is one of *wanted*, and return it."""
        return await self._levels[name].wait(*wanted)

    @property
    def stop_limit(self) -> float:
        """Seconds that stopping all children may take, one after the other."""
        return _MARGIN + sum(spec.stop_budget + spec.cancel_budget for spec in self._plan.specs)

    def as_child(
        self, restart: Restart = Restart.PERMANENT, *, significant: bool = False
    ) -> ChildSpec:
        """Describe this supervisor as a child of another; its budgets are its children's."""
        starts = (spec.start_budget + spec.cancel_budget for spec in self._plan.specs)
        return ChildSpec(
            name=self.name,
            run=self.run,
            restart=restart,
            start_budget=math.inf if self._handle else _MARGIN + sum(starts),
            stop_budget=self.stop_limit,
            cancel_budget=self.stop_limit,
            significant=significant,
            subtree=self,
        )

    def snapshot(self) -> SupervisorSnapshot:
        """Show all children as they are now, with what is below them."""
        now = trio.current_time()
        tree, policy = self._tree, self._plan.policy
        due = [child.due for child in tree.children if child.due is not None]
        return SupervisorSnapshot(
            name=self.name,
            state=self.state,
            since=self._since,
            strategy=self._plan.strategy,
            restarts=tree.restarts.count(now),
            intensity=policy.intensity,
            period=policy.period,
            next_try=min(due, default=None),
            children=tuple(
                _show(child, tree.restarts.count(now, child.name)) for child in tree.children
            ),
        )

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run the children until *stop*, or until one fails too often: the body of a child.

        Then, and when cancelled, stops them in reverse order: each is asked, and cancelled when
        its budget or the program's is used up. Reports itself started when all are ready, or at
        once if it is a handle. Returns when asked to stop, and when a significant child has done
        its work. A child that does not even end when cancelled keeps this waiting; the shutdown is
        hurried, so that whoever owns the process can end it. May be run again after its end:
        everything but its waiters is made anew.

        Raises:
            FirstStartFailed: A child failed before all had been ready once.
            RestartLimitExceeded: A child failed too often, or cannot be ended. The children's own
                errors are its causes; the other children have been stopped.
        """
        if self._running:
            raise RuntimeError(f"{self.name} runs already")
        tree = self._begin()
        if self._handle:
            task_status.started()
        failure: Exception | None = None
        end = ChildState.STOPPED
        try:
            async with trio.open_nursery() as nursery:
                try:
                    announce = _ignore if self._handle else task_status.started
                    failure = await tree.watch(nursery, stop, announce)
                finally:
                    self._ending = True
                    self._refresh()
                    with trio.move_on_after(self.stop_limit, shield=True):
                        await tree.stop_all()
            if failure is not None:
                end = ChildState.FAILED
        except Exception:
            end = ChildState.FAILED
            raise
        finally:
            self._running = False
            self._enter(end)
        if failure is not None:
            raise failure

    def _begin(self) -> Tree:
        """Make everything of one run anew."""
        self._running, self._ending = True, False
        for level in self._levels.values():
            level.set(ChildState.NEW)
        self._tree = Tree(self._plan, self._levels, self._refresh, trio.current_time())
        self._enter(ChildState.STARTING)
        return self._tree

    def _refresh(self) -> None:
        """Take over what has changed below."""
        state = overall(child.state for child in self._tree.children)
        ending = self._ending or self._tree.dropped
        self._enter(ChildState.STOPPING if ending and state is not ChildState.STUCK else state)

    def _enter(self, state: ChildState) -> None:
        if state is not self.state:
            self._since = trio.current_time()
            self._state.set(state)

    def _emit(self, event: Event) -> None:
        """Log, and tell the owner; the named edge for the owner's errors."""
        log_event(event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            _LOGGER.exception("%s: whoever watches it failed at %r", self.name, event)


def _ignore() -> None:
    """Do nothing: a handle is started already."""


def _show(child: Child, restarts: int) -> ChildSnapshot:
    tree = None if child.spec.subtree is None else child.spec.subtree.snapshot()
    inner = tree if child.state is ChildState.READY else None
    return ChildSnapshot(
        name=child.name,
        state=child.state if inner is None else inner.state,
        generation=child.generation,
        since=child.since if inner is None else inner.since,
        restarts=restarts,
        next_try=child.due if inner is None else inner.next_try,
        first_failure=child.first_failure,
        last_failure=child.last_failure,
        tree=tree,
    )
