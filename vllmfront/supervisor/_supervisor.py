"""Interprets a table of child specs: ordered start, restarts, reverse stop.

The supervisor's loop runs in the body of the nursery whose children it watches. Children are
shielded from outer cancellation, because cancelling an outer scope reaches all tasks at once and
would destroy the order; in exchange the supervisor stops each of them within a bounded time, and
lifts the shield of one that has used it up.
"""

import logging
import math
from collections.abc import Sequence

import attrs
import trio

from vllmfront.errors import RestartLimitExceeded, VllmFrontError
from vllmfront.supervisor._shutdown import Shutdown
from vllmfront.supervisor._spec import (
    ChildSnapshot,
    ChildSpec,
    ChildState,
    Restart,
    SupervisorSnapshot,
)
from vllmfront.supervisor._stack import describe_task
from vllmfront.supervisor._wait import wait_any
from vllmfront.supervisor._window import RestartWindow

_LOGGER = logging.getLogger(__name__)

_CANCEL_BUDGET = 15.0
"""Seconds a cancelled child may clean up: above the bounded clean-ups of all that we run."""


class ChildReturned(VllmFrontError):
    """Raised for a permanent child that returned although nobody had asked it to."""


class ChildNotReady(VllmFrontError):
    """Raised for a child that used up its start budget."""


class _Readiness:
    """The task status that a child gets: its word that it can answer."""

    def __init__(self, ready: trio.Event) -> None:
        self._ready = ready

    def started(self, value: None = None) -> None:
        del value
        self._ready.set()


@attrs.define(eq=False)
class _Child:
    spec: ChildSpec
    state: ChildState = ChildState.NEW
    generation: int = 0
    since: float = -math.inf
    last_failure: str | None = None
    failure: Exception | None = None
    judged: bool = True
    """Whether the policy has seen the end of this incarnation."""

    stop: trio.Event = attrs.field(factory=trio.Event)
    ready: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Shielded until the budget of the incarnation has run out."""

    task: trio.lowlevel.Task | None = None

    @property
    def stuck(self) -> bool:
        return self.state is ChildState.STUCK

    def begin(self) -> None:
        """Make everything of a new incarnation anew."""
        self.stop, self.ready, self.ended = trio.Event(), trio.Event(), trio.Event()
        self.scope = trio.CancelScope(shield=True)
        self.failure = None
        self.judged = False
        self.generation += 1
        self.enter(ChildState.STARTING)

    def enter(self, state: ChildState) -> None:
        self.state, self.since = state, trio.current_time()

    async def run(self) -> None:
        """Run one incarnation and note how it ended; the named edge for its errors."""
        self.task = trio.lowlevel.current_task()
        try:
            with self.scope:
                await self.spec.run(self.stop, task_status=_Readiness(self.ready))
        except Exception as exc:  # noqa: BLE001 - a child's edge: the policy decides
            self.failure = exc
        finally:
            self.task = None
            self.ended.set()
            if self.stuck:
                self.enter(ChildState.STOPPED)

    def judge(self) -> bool:
        """Weigh the end by the restart kind; False asks for a restart."""
        self.judged = True
        if self.failure is None and self.spec.restart is Restart.PERMANENT:
            self.failure = ChildReturned(f"{self.spec.name} returned without being asked to")
        if self.failure is None:
            self.enter(ChildState.STOPPED)
            return True
        self.note_failure()
        self.enter(ChildState.FAILED)
        level = logging.DEBUG if isinstance(self.failure, VllmFrontError) else logging.ERROR
        _LOGGER.log(level, "%s failed", self.spec.name, exc_info=self.failure)
        return self.spec.restart is Restart.TEMPORARY

    def note_failure(self) -> None:
        self.last_failure = str(self.failure) or type(self.failure).__name__

    def snapshot(self) -> ChildSnapshot:
        return ChildSnapshot(
            name=self.spec.name,
            state=self.state,
            generation=self.generation,
            since=self.since,
            last_failure=self.last_failure,
        )


class Supervisor:
    """Children of one_for_one: each is restarted alone, and too many restarts end them all."""

    def __init__(self, name: str, specs: Sequence[ChildSpec], window: RestartWindow) -> None:
        self.name = name
        self._children = [_Child(spec) for spec in specs]
        self._window = window

    def __repr__(self) -> str:
        states = ", ".join(f"{child.spec.name} {child.state.name}" for child in self._children)
        return f"<Supervisor {self.name}: {states}>"

    def snapshot(self) -> SupervisorSnapshot:
        """Show all children as they are now."""
        return SupervisorSnapshot(
            name=self.name,
            restarts=self._window.count(trio.current_time()),
            children=tuple(child.snapshot() for child in self._children),
        )

    async def supervise(
        self,
        shutdown: Shutdown,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the children until *shutdown*, or until one fails too often.

        Then, and when cancelled, stops them in reverse order: each is asked, and cancelled when
        its budget or the program's is used up. Reports itself started when all are ready. A child
        that does not even end then keeps this waiting; *shutdown* is hurried, so that whoever owns
        the process can end it.

        Raises:
            RestartLimitExceeded: A child failed at its first start, or too often. The cause is
                its own error; the other children have been stopped.
        """
        failed: _Child | None = None
        async with trio.open_nursery() as nursery:
            try:
                failed = await self._start_all(nursery, shutdown)
                if failed is None and not shutdown.requested.is_set():
                    task_status.started()
                    failed = await self._watch(nursery, shutdown)
            finally:
                with trio.move_on_after(self._stop_limit(), shield=True) as scope:
                    for child in reversed(self._children):
                        await self._stop(child, shutdown)
                if scope.cancelled_caught:
                    _LOGGER.error("%r: the children took too long to stop", self)
                self._give_up_on_stuck(shutdown)
        if failed is not None:
            raise RestartLimitExceeded(f"{failed.spec.name} failed") from failed.failure

    async def _start_all(self, nursery: trio.Nursery, shutdown: Shutdown) -> _Child | None:
        """Start every child, each when the one before is ready; return one that fails.

        A failure now is not retried: it is a mistake in the configuration, more often than not.
        """
        for child in self._children:
            await self._start(nursery, child, shutdown)
            if shutdown.requested.is_set():
                return None
            if child.stuck or (child.ended.is_set() and not child.judge()):
                return child
        return None

    async def _start(self, nursery: trio.Nursery, child: _Child, shutdown: Shutdown) -> None:
        """Start one incarnation and wait until it is ready, ended, or not wanted any more."""
        child.begin()
        nursery.start_soon(child.run, name=f"{self.name}/{child.spec.name}")
        with trio.move_on_after(child.spec.start_budget) as budget:
            await wait_any(child.ready.wait, child.ended.wait, shutdown.requested.wait)
        if budget.cancelled_caught:
            await self._cancel(child, "was not ready")
            child.failure = ChildNotReady(
                f"{child.spec.name} was not ready within {child.spec.start_budget:g} s"
            )
            child.note_failure()
        elif child.ready.is_set() and not child.ended.is_set():
            child.enter(ChildState.READY)

    async def _watch(self, nursery: trio.Nursery, shutdown: Shutdown) -> _Child | None:
        """Apply the policy to whatever ends; return the child that is one too many."""
        while not shutdown.requested.is_set():
            for child in self._children:
                while child.ended.is_set() and not child.judged:
                    if child.judge():
                        break
                    if not self._window.admit(trio.current_time()):
                        return child
                    self._log_restart(child)
                    await self._start(nursery, child, shutdown)
                    if child.stuck:
                        return child
            running = [child.ended.wait for child in self._children if not child.judged]
            await wait_any(shutdown.requested.wait, *running)
        return None

    def _log_restart(self, child: _Child) -> None:
        _LOGGER.warning(
            "restarting %s at once, attempt %d (restart %d of at most %d in %g s): %s",
            child.spec.name,
            child.generation + 1,
            self._window.count(trio.current_time()),
            self._window.intensity,
            self._window.period,
            child.last_failure,
        )

    def _give_up_on_stuck(self, shutdown: Shutdown) -> None:
        """Ask for the end of the program where a child can neither be ended nor replaced."""
        stuck = [child.spec.name for child in self._children if child.stuck]
        if stuck:
            shutdown.hurry(f"{', '.join(stuck)} cannot be ended")

    def _stop_limit(self) -> float:
        return sum(child.spec.stop_budget + _CANCEL_BUDGET for child in self._children)

    async def _stop(self, child: _Child, shutdown: Shutdown) -> None:
        """Ask, wait within the budgets, cancel, and wait for the end."""
        if child.generation == 0 or child.judged or child.stuck:
            return
        child.enter(ChildState.STOPPING)
        child.stop.set()
        own = trio.current_time() + child.spec.stop_budget
        with trio.move_on_at(min(own, shutdown.end)) as budget:
            if not shutdown.hurried.is_set():
                await wait_any(child.ended.wait, shutdown.hurried.wait)
                budget.deadline = min(own, shutdown.end)
            await child.ended.wait()
        if not await self._cancel(child, "did not stop"):
            return
        if child.failure is not None:
            child.note_failure()
            bug = None if isinstance(child.failure, VllmFrontError) else child.failure
            text = "%s failed while stopping: %s"
            _LOGGER.warning(text, child.spec.name, child.last_failure, exc_info=bug)
        child.enter(ChildState.STOPPED)

    async def _cancel(self, child: _Child, reason: str) -> bool:
        """Cancel one that has used up its budget; False: it is stuck, it does not end even so."""
        if child.ended.is_set():
            return True
        took = trio.current_time() - child.since
        _LOGGER.warning("cancelling %s, which %s within %.3g s", child.spec.name, reason, took)
        child.scope.shield = False
        child.scope.cancel(reason=f"{child.spec.name} {reason} in time")
        with trio.move_on_after(_CANCEL_BUDGET):
            await child.ended.wait()
        if child.task is None:
            return True
        child.enter(ChildState.STUCK)
        _LOGGER.error(
            "%s is stuck: cancelled, it has not ended within %g s; it hangs at\n%s",
            child.spec.name,
            _CANCEL_BUDGET,
            describe_task(child.task),
        )
        return False
