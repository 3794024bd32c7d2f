"""One run of a supervisor: its children, and the loop that decides about them."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import attrs
import trio

from vllmfront.errors import FirstStartFailed, RestartLimitExceeded
from vllmfront.supervisor import _ladder
from vllmfront.supervisor._child import Child, Incarnation
from vllmfront.supervisor._errors import ChildCannotEnd, ChildNotReady, ChildReturned
from vllmfront.supervisor._events import (
    ChildFailed,
    ChildReady,
    ChildStuck,
    Event,
    GaveUp,
    Response,
    RestartDropped,
)
from vllmfront.supervisor._level import Level
from vllmfront.supervisor._policy import RestartPolicy
from vllmfront.supervisor._restarts import Restarts
from vllmfront.supervisor._shutdown import Shutdown
from vllmfront.supervisor._spec import ChildSpec, Restart
from vllmfront.supervisor._state import ALIVE, IN_TRANSIT, RUNNING, UP_OR_GONE, ChildState
from vllmfront.supervisor._strategy import Candidate, Incident, Strategy, incidents, may_start
from vllmfront.supervisor._wait import wait_any


@attrs.frozen(kw_only=True)
class Plan:
    """What does not change over the runs of a supervisor."""

    name: str
    specs: Sequence[ChildSpec]
    policy: RestartPolicy
    strategy: Strategy
    shutdown: Shutdown
    random: Callable[[], float]
    emit: Callable[[Event], None]


class _Of(TypedDict):
    supervisor: str
    child: str
    generation: int


@attrs.frozen
class _Exit:
    """A child's report that an incarnation of it has ended."""

    child: Child
    generation: int

    @property
    def counts(self) -> bool:
        """Whether it is news: not of a past incarnation, nor of one that was made to end."""
        return self.generation == self.child.generation and self.child.state in RUNNING


class Tree:
    """The children of one run; made anew for the next one."""

    def __init__(
        self,
        plan: Plan,
        levels: Mapping[str, Level[ChildState]],
        on_change: Callable[[], None],
        now: float | None,
    ) -> None:
        self.children = [Child(spec, levels[spec.name], self._changed, now) for spec in plan.specs]
        self.restarts = Restarts(plan.policy, plan.random)
        self.dropped = False
        """Whether a child that should run does not, because the program is ending."""

        self._plan = plan
        self._on_change = on_change
        self._complete = False
        """Whether all children have been up; until then no failure is retried."""

        self._finished = False
        self._failure: RestartLimitExceeded | None = None
        """The error with which to give up."""

        self._exits: list[_Exit] = []
        self._wake = trio.Event()

    async def watch(
        self, nursery: trio.Nursery, stop: trio.Event, on_complete: Callable[[], None]
    ) -> RestartLimitExceeded | None:
        """Start children and apply the policy to whatever ends, until *stop*.

        Calls *on_complete* once, when all children have come up.

        Returns:
            The error with which to give up; None when asked to stop, or when a significant child
            has done its work. Children may be running in any case.
        """
        while not stop.is_set() and not self._finished:
            self._wake = trio.Event()
            ended = self._take_exits() or await self._end_late()
            if ended:
                await self._settle(ended)
                continue
            if self._plan.shutdown.requested.is_set():
                self._drop_restarts()
            else:
                self._start_some(nursery)
                if not self._complete and all(each.state in UP_OR_GONE for each in self.children):
                    self._complete = True
                    on_complete()
            await self._wait(stop)
        return self._failure

    async def stop_all(self) -> None:
        """End all children in reverse order of their start, each within its budget."""
        for child in reversed(self.children):
            waiting = child.state is ChildState.BACKOFF
            if waiting or (child.state in ALIVE and await self._stop(child)):
                child.enter(ChildState.STOPPED)
        stuck = [child.name for child in self.children if child.state is ChildState.STUCK]
        if stuck:
            self._plan.shutdown.hurry(f"{', '.join(stuck)} cannot be ended")

    async def _wait(self, stop: trio.Event) -> None:
        """Wait until a child has news, it is time for something, or the end is wanted."""
        waits = [self._wake.wait, stop.wait]
        if not self._plan.shutdown.requested.is_set():
            waits.append(self._plan.shutdown.requested.wait)
        times = [child.due for child in self.children if child.due is not None]
        times += [each.current.start_by for each in self.children if each.is_starting]
        with trio.move_on_at(min(times, default=math.inf)):
            await wait_any(*waits)

    # Starting.

    def _start_some(self, nursery: trio.Nursery) -> None:
        """Start those whose time has come: in order, unless they are restarted one by one."""
        ordered = not self._complete or self._plan.strategy is not Strategy.ONE_FOR_ONE
        candidates = [Candidate(child.state, child.due) for child in self.children]
        for place in may_start(candidates, trio.current_time(), ordered=ordered):
            child = self.children[place]
            incarnation = child.begin(
                functools.partial(self._on_ready, child), functools.partial(self._on_end, child)
            )
            nursery.start_soon(incarnation.run, name=f"{self._plan.name}/{child.name}")

    def _drop_restarts(self) -> None:
        """Start nothing any more: what waits for that has stopped."""
        for child in self.children:
            if child.state is ChildState.BACKOFF:
                self.dropped = True
                child.enter(ChildState.STOPPED)
                self._plan.emit(RestartDropped(**self._of(child)))

    def _of(self, child: Child) -> "_Of":
        """Return what all events tell of their child."""
        return {
            "supervisor": self._plan.name,
            "child": child.name,
            "generation": child.generation,
        }

    # What children report: these run in their tasks.

    def _on_ready(self, child: Child, incarnation: Incarnation) -> None:
        if incarnation.generation != child.generation or child.state is not ChildState.STARTING:
            return
        child.enter(ChildState.READY)
        took = trio.current_time() - incarnation.begun
        self._plan.emit(ChildReady(**self._of(child), took=took))
        self._wake.set()

    def _on_end(self, child: Child, incarnation: Incarnation) -> None:
        if child.state is ChildState.STUCK:
            child.enter(ChildState.STOPPED)
        self._exits.append(_Exit(child, incarnation.generation))
        self._wake.set()

    def _changed(self) -> None:
        now = trio.current_time()
        if any(child.state in IN_TRANSIT for child in self.children):
            self.restarts.hold_clock(now)
        else:
            self.restarts.release_clock(now)
        self._on_change()

    # Ends.

    def _take_exits(self) -> list[Child]:
        exits, self._exits = self._exits, []
        return [each.child for each in exits if each.counts]

    async def _end_late(self) -> list[Child]:
        """Cancel those that have used up their time to start; return them."""
        late = []
        for child in self.children:
            if not child.is_starting or child.current.start_by > trio.current_time():
                continue
            if not await _ladder.cancel(child):
                self._report_stuck(child)
            error = ChildNotReady(
                f"{child.name} was not ready within {child.spec.start_budget:g} s"
            )
            error.__cause__ = child.current.failure
            child.current.failure = error
            late.append(child)
        return late

    async def _settle(self, ended: Sequence[Child]) -> None:
        """Answer all ends that were seen at once."""
        failed = [child for child in ended if not self._ended_well(child)]
        if self._finished or self._plan.shutdown.requested.is_set():
            self.dropped = True
            for child in failed:
                self._fail(child, Response.STOP)
            return
        leaving = [child for child in failed if _may_leave(child.spec)]
        for child in leaving:
            self._fail(child, Response.LEAVE)
        failed = [child for child in failed if child not in leaving]
        if any(child.state is ChildState.STUCK for child in failed):
            self._give_up(failed, "cannot be ended, hence not be replaced")
        elif any(child.spec.restart is Restart.TEMPORARY for child in failed):
            self._give_up(failed, "failed for good")
        elif any(self._is_first_start(child) for child in failed):
            self._give_up(failed, "failed at the first start", FirstStartFailed)
        elif failed:
            await self._restart(failed)

    def _ended_well(self, child: Child) -> bool:
        """Stop a child that was free to end; False: it has failed."""
        if child.current.failure is None and child.spec.restart is Restart.PERMANENT:
            child.current.failure = ChildReturned(f"{child.name} returned without being asked to")
        if child.current.failure is not None:
            return False
        child.enter(ChildState.STOPPED)
        self._finished = self._finished or child.spec.significant
        return True

    def _is_first_start(self, child: Child) -> bool:
        """Whether no retry would help: more often than not, it is a mistake of configuration.

        A supervisor that is a handle tells of its own first start when it has long been started.
        """
        own = child.generation == 1 and isinstance(child.current.failure, FirstStartFailed)
        return own or not self._complete

    async def _restart(self, failed: Sequence[Child]) -> None:
        """Restart children by the strategy, or give up if that is one time too many."""
        now = trio.current_time()
        places = [self.children.index(child) for child in failed]
        found = incidents(self._plan.strategy, places, len(self.children))
        delays = [self._count(incident, now) for incident in found]
        if None in delays:
            policy = self._plan.policy
            limit = f" more than {policy.intensity} times in {policy.period:g} s"
            self._give_up(failed, f"failed{limit if policy.intensity else ''}")
            return
        for incident, delay in zip(found, delays, strict=True):
            assert delay is not None
            for place in incident.failed:
                self._fail(self.children[place], Response.RESTART, delay, now + delay)
            for place in reversed(incident.affected):
                if not await self._take_along(self.children[place], now + delay):
                    return

    def _count(self, incident: Incident, now: float) -> float | None:
        children = [self.children[place] for place in incident.failed]
        uptimes = {child.name: child.current.uptime for child in children}
        return self.restarts.incident(now, uptimes)

    async def _take_along(self, child: Child, due: float) -> bool:
        """Stop one that is affected, for a restart when it is *due*; False: it is stuck."""
        temporary = child.spec.restart is Restart.TEMPORARY
        if child.state in ALIVE:
            if not await self._stop(child):
                child.current.failure = ChildCannotEnd(f"{child.name} cannot be ended")
                self._give_up([child], "cannot be ended, hence not be replaced")
                return False
            if temporary:
                child.enter(ChildState.STOPPED)
            else:
                child.enter(ChildState.BACKOFF, due)
        elif child.state is ChildState.STOPPED and not temporary:
            child.enter(ChildState.BACKOFF, due)
        elif child.due is not None:
            child.due = max(child.due, due)
        return True

    async def _stop(self, child: Child) -> bool:
        """Stop a child, and tell what it leaves behind; False: it is stuck."""
        ended = await _ladder.stop(child, self._plan.shutdown)
        if not ended:
            self._report_stuck(child)
        elif child.current.failure is not None:
            self._tell(child, Response.STOP)
        return ended

    def _give_up(
        self,
        failed: Sequence[Child],
        what: str,
        kind: type[RestartLimitExceeded] = RestartLimitExceeded,
    ) -> None:
        """Let the supervisor fail because of these children, all of which are the causes."""
        causes = [self._fail(child, Response.GIVE_UP) for child in failed]
        reason = f"{', '.join(child.name for child in failed)} {what}"
        if len(causes) > 1:
            reason += f" ({'; '.join(f'{child.name}: {child.last_failure}' for child in failed)})"
        self._failure = kind(reason, causes)
        self._finished = True
        self._plan.emit(GaveUp(supervisor=self._plan.name, reason=reason, causes=tuple(causes)))

    def _fail(
        self, child: Child, response: Response, delay: float | None = None, due: float | None = None
    ) -> Exception:
        """Tell of the failure of a child that has ended, and let it enter what follows."""
        error = self._tell(child, response, delay)
        if response is Response.RESTART:
            child.enter(ChildState.BACKOFF, due)
        elif child.state is not ChildState.STUCK:
            child.enter(ChildState.FAILED)
        return error

    def _tell(self, child: Child, response: Response, delay: float | None = None) -> Exception:
        error = child.current.failure
        assert error is not None
        event = ChildFailed(
            **self._of(child),
            error=error,
            text=child.note(error),
            response=response,
            delay=delay,
            restarts=self.restarts.count(trio.current_time()),
            intensity=self._plan.policy.intensity,
            period=self._plan.policy.period,
        )
        self._plan.emit(event)
        return error

    def _report_stuck(self, child: Child) -> None:
        stack = _ladder.describe(child)
        self._plan.emit(ChildStuck(**self._of(child), budget=child.spec.cancel_budget, stack=stack))


def _may_leave(spec: ChildSpec) -> bool:
    """Whether the others go on without a child that has failed."""
    return spec.restart is Restart.TEMPORARY and not spec.significant
