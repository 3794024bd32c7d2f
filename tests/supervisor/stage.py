"""Children that do as they are told, and a supervisor around them, under a clock that jumps."""

import math
from collections.abc import Callable, Sequence

import attrs
import trio

from vllmfront.errors import RestartLimitExceeded
from vllmfront.supervisor import (
    Backoff,
    ChildSpec,
    ChildState,
    Event,
    Restart,
    RestartPolicy,
    Shutdown,
    Strategy,
    Supervisor,
)

AT_ONCE = Backoff(base=0.0, jitter=0.0)
"""No delay before a restart."""

STEADY = Backoff(base=1.0, factor=2.0, cap=60.0, jitter=0.0, reset_after=60.0)
"""Delays of 1, 2, 4 ... seconds."""


@attrs.define
class _Body:
    """What a child does in each of its incarnations."""

    note: Callable[[str], None]
    readiness: Sequence[float]
    ends_after: float
    failure: str | None
    lives: int
    stop_takes: float
    born: int = 0

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        wait = self.readiness[min(self.born, len(self.readiness) - 1)]
        self.born += 1
        self.note("begins")
        try:
            await trio.sleep(abs(wait))
            if wait >= 0:
                task_status.started()
            with trio.move_on_after(self.ends_after if self.born <= self.lives else math.inf):
                await stop.wait()
                await trio.sleep(self.stop_takes)
                self.note("stopped")
                return
            if self.failure is not None:
                raise RuntimeError(self.failure)
            self.note("returned")
        except trio.Cancelled:
            self.note("cancelled")
            raise


@attrs.define
class Stage:
    """Children that note what happens to them, with the time."""

    log: list[tuple[float, str]] = attrs.field(factory=list)
    begun: float = attrs.field(factory=trio.current_time)

    def note(self, what: str) -> None:
        self.log.append((trio.current_time() - self.begun, what))

    def child(  # each knob is one way to behave
        self,
        name: str,
        *,
        ready_after: float | Sequence[float] = 0.0,
        ends_after: float = math.inf,
        fails: bool = False,
        lives: int = 1_000_000,
        stop_takes: float = 0.0,
        restart: Restart = Restart.PERMANENT,
        start_budget: float = 60.0,
        stop_budget: float = 5.0,
        significant: bool = False,
    ) -> ChildSpec:
        """Describe a child.

        Args:
            name: Its name.
            ready_after: Seconds until it is ready, maybe another number for each incarnation up to
                the last one given; negative: it is never, but goes on like that.
            ends_after: Seconds from there until it ends by itself.
            fails: Whether it ends with an error.
            lives: Incarnations that end by themselves; the next one is healthy.
            stop_takes: Seconds from the request to stop until it does.
            restart: When it comes back.
            start_budget: Its time to start.
            stop_budget: Its time to stop.
            significant: Whether its end matters to its supervisor.
        """
        readiness = [ready_after] if isinstance(ready_after, int | float) else list(ready_after)
        body = _Body(
            note=lambda what: self.note(f"{name} {what}"),
            readiness=readiness,
            ends_after=ends_after,
            failure=f"{name} broke" if fails else None,
            lives=lives,
            stop_takes=stop_takes,
        )
        return ChildSpec(
            name=name,
            run=body.run,
            restart=restart,
            start_budget=start_budget,
            stop_budget=stop_budget,
            significant=significant,
        )

    @property
    def events(self) -> list[str]:
        return [what for _, what in self.log]

    def times(self, what: str) -> list[float]:
        """Return the seconds at which *what* happened."""
        return [time for time, each in self.log if each == what]


def deaf(
    name: str,
    release: trio.Event,
    *,
    ready: bool = True,
    restart: Restart = Restart.PERMANENT,
) -> ChildSpec:
    """Describe a child that cannot be cancelled until *release*, because a task of its cannot."""

    async def hang_forever() -> None:
        with trio.CancelScope(shield=True):
            await release.wait()

    async def run(
        stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        if ready:
            task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang_forever)
            await stop.wait()

    return ChildSpec(name=name, run=run, restart=restart, start_budget=3.0, stop_budget=5.0)


def make_shutdown(budget: float = 0.0, margin: float = 30.0) -> Shutdown:
    return Shutdown(budget=budget, margin=margin)


def supervisor(
    *specs: ChildSpec,
    name: str = "root",
    shutdown: Shutdown | None = None,
    intensity: int = 0,
    period: float = 60.0,
    backoff: Backoff = AT_ONCE,
    strategy: Strategy = Strategy.ONE_FOR_ONE,
    handle: bool = False,
    on_event: Callable[[Event], None] | None = None,
    random: Callable[[], float] = lambda: 0.0,
) -> Supervisor:
    return Supervisor(
        name,
        specs,
        RestartPolicy(intensity=intensity, period=period, backoff=backoff),
        shutdown=shutdown or make_shutdown(),
        strategy=strategy,
        handle=handle,
        on_event=on_event,
        random=random,
    )


async def run_for(
    seconds: float, tree: Supervisor, shutdown: Shutdown | None = None
) -> RestartLimitExceeded | None:
    """Run a tree, ask for its end after *seconds*, and return what it raised."""
    raised: list[RestartLimitExceeded] = []
    stop = trio.Event()

    async def run() -> None:
        try:
            await tree.run(stop)
        except RestartLimitExceeded as exc:
            raised.append(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.sleep(seconds)
        stop.set()
        if shutdown is not None:
            shutdown.request("the test is over")
    return raised[0] if raised else None


def states(tree: Supervisor) -> list[ChildState]:
    return [child.state for child in tree.snapshot().children]


def generations(tree: Supervisor) -> list[int]:
    return [child.generation for child in tree.snapshot().children]
