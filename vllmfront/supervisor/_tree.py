"""One run of a supervisor: its children, and the loop that decides about them."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import trio

from vllmfront.errors import FirstStartFailed, RestartLimitExceeded
from vllmfront.supervisor import _ladder
from vllmfront.supervisor._child import Child, Exit, Incarnation
from vllmfront.supervisor._errors import ChildCannotEnd, ChildNotReady, ChildReturned
from vllmfront.supervisor._events import Response
from vllmfront.supervisor._level import Level
from vllmfront.supervisor._plan import Plan
from vllmfront.supervisor._reporter import Reporter
from vllmfront.supervisor._restarts import Restarts
from vllmfront.supervisor._spec import Restart
from vllmfront.supervisor._state import ALIVE, IN_TRANSIT, UP_OR_GONE, ChildState
from vllmfront.supervisor._strategy import Candidate, Incident, Strategy, incidents, may_start
from vllmfront.supervisor._wait import wait_any

_CANNOT_END = "cannot be ended, hence not be replaced"


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
        """Whether a child that should run does not, because all is about to end."""

        self._plan = plan
        self._on_change = on_change
        self._report = Reporter(plan.name, self.restarts, plan.emit)
        self._complete = False
        """Whether all children have been up; until then no failure is retried."""

        self._finished = False
        self._failure: RestartLimitExceeded | None = None
        """The error with which to give up."""

        self._exits: list[Exit] = []
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
                self._drop_starts()
            else:
                self._start_some(nursery)
                if not self._complete and all(each.state in UP_OR_GONE for each in self.children):
                    self._complete = True
                    on_complete()
            await self._wait(stop)
        return self._failure

    async def stop_all(self) -> None:
        """End all children in reverse order of their start, each within its budget."""
        try:
            for child in reversed(self.children):
                waiting = child.state is ChildState.BACKOFF
                if waiting or (child.state in ALIVE and await self._stop(child)):
                    child.enter(ChildState.STOPPED)
        finally:
            # Should a bug in here leave one behind: its shield would keep us waiting for ever.
            for child in self.children:
                child.cut_off()
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
        # What is due already waits for a child ahead of it, hence for news.
        ahead = [time for time in times if time > trio.current_time()]
        with trio.move_on_at(min(ahead, default=math.inf)):
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

    def _drop_starts(self) -> None:
        """Start nothing any more: what waits to come back has stopped."""
        for child in self.children:
            if child.state in {ChildState.NEW, ChildState.BACKOFF}:
                self.dropped = True
            if child.state is ChildState.BACKOFF:
                child.enter(ChildState.STOPPED)
                self._report.dropped(child)
        self._on_change()

    # What children report: these run in their tasks.

    def _on_ready(self, child: Child) -> None:
        if child.is_starting:
            child.enter(ChildState.READY)
            self._report.ready(child)
            self._wake.set()

    def _on_end(self, child: Child, incarnation: Incarnation) -> None:
        if child.state is ChildState.STUCK:
            child.enter(ChildState.STOPPED)
        self._exits.append(Exit(child, incarnation.generation))
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
                self._report.stuck(child)
            budget = child.spec.start_budget
            error = ChildNotReady(f"{child.name} was not ready within {budget:g} s")
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
                self._fail(child, Response.DROP)
            return
        leaving = [child for child in failed if child.spec.may_leave]
        for child in leaving:
            self._fail(child, Response.LEAVE)
        failed = [child for child in failed if child not in leaving]
        if any(child.state is ChildState.STUCK for child in failed):
            self._give_up(failed, _CANNOT_END)
        elif any(child.spec.restart is Restart.TEMPORARY for child in failed):
            self._give_up(failed, "failed for good")
        elif any(self._is_first_start(child) for child in failed):
            self._give_up(failed, "failed at the first start", kind=FirstStartFailed)
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
            self._give_up(failed, f"failed{self._plan.policy.limit}")
            return
        errors: list[Exception] = []
        for incident, delay in zip(found, delays, strict=True):
            assert delay is not None
            errors += [
                self._fail(child, Response.RESTART, delay=delay, due=now + delay)
                for child in self._at(incident.failed)
            ]
            for child in reversed(self._at(incident.affected)):
                if not await self._take_along(child, now + delay):
                    stuck = f"{child.name} {_CANNOT_END}"
                    self._quit(RestartLimitExceeded(stuck, [*errors, ChildCannotEnd(stuck)]))
                    return

    def _count(self, incident: Incident, now: float) -> float | None:
        uptimes = {child.name: child.current.uptime for child in self._at(incident.failed)}
        return self.restarts.incident(now, uptimes)

    def _at(self, places: Sequence[int]) -> list[Child]:
        return [self.children[place] for place in places]

    async def _take_along(self, child: Child, due: float) -> bool:
        """Stop one that is affected, for a restart when it is *due*; False: it is stuck."""
        temporary = child.spec.restart is Restart.TEMPORARY
        if child.state in ALIVE:
            if not await self._stop(child):
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
            self._report.stuck(child)
        elif child.current.failure is not None:
            self._report.failed(child, Response.STOP)
        return ended

    def _fail(
        self,
        child: Child,
        response: Response,
        *,
        delay: float | None = None,
        due: float | None = None,
    ) -> Exception:
        """Tell of the failure of a child that has ended, and let it enter what follows."""
        error = self._report.failed(child, response, delay)
        if response is Response.RESTART:
            child.enter(ChildState.BACKOFF, due)
        elif child.state is not ChildState.STUCK:
            child.enter(ChildState.FAILED)
        return error

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
        self._quit(kind(reason, causes))

    def _quit(self, failure: RestartLimitExceeded) -> None:
        self._failure = failure
        self._finished = True
        self._report.gave_up(str(failure), failure.causes)
