"""Whatever children do, whenever the end comes: the rules that no run of a supervisor breaks."""

import math
import random
import signal

import attrs
import pytest
import trio
import trio.testing

from tests.supervisor.stage import make_shutdown
from vllmfront.errors import RestartLimitExceeded
from vllmfront.supervisor import (
    Backoff,
    ChildFailed,
    ChildNotReady,
    ChildReturned,
    ChildSpec,
    ChildState,
    Event,
    Restart,
    RestartPolicy,
    Shutdown,
    Strategy,
    Supervisor,
)

MOST_STEPS = 20_000
"""Of all tasks of one run: more of them are a supervisor that does not sleep."""

UP_OR_GONE = {ChildState.READY, ChildState.STOPPED, ChildState.FAILED}


@attrs.frozen
class Life:
    """What one incarnation does."""

    ready_after: float
    """Infinite: never."""

    ends_after: float
    """From its beginning."""

    fails: bool
    stop_takes: float
    """Infinite: it ignores the request, and has to be cancelled."""

    clean_up: float
    """Seconds that it shields itself when cancelled."""


@attrs.frozen
class Script:
    """What one child does; the last life goes on and on."""

    restart: Restart
    significant: bool
    lives: list[Life]


@attrs.frozen
class Story:
    """One run."""

    strategy: Strategy
    scripts: list[Script]
    intensity: int
    handle: bool
    nested: bool
    """Whether it happens below another supervisor."""

    ends_at: float
    cancelled: bool
    shutdown_at: float


class Watchdog(trio.abc.Instrument):
    """Interrupts a run that does not sleep: no time passes there, so no deadline would."""

    def __init__(self) -> None:
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.steps += 1
        if self.steps == MOST_STEPS:
            signal.raise_signal(signal.SIGINT)


@attrs.define
class Troupe:
    """Plays a story, and looks whether the rules hold at each step."""

    story: Story
    tree: Supervisor = attrs.field(init=False)
    raised: list[Exception] = attrs.field(factory=list)
    told: list[Event] = attrs.field(factory=list)
    alive: set[str] = attrs.field(factory=set)
    outcome: RestartLimitExceeded | None = None
    asked_at: float = math.inf
    """When the end was wanted."""

    def child(self, place: int, script: Script) -> ChildSpec:
        name, lives = f"child-{place}", list(script.lives)

        async def run(  # noqa: ASYNC128 (its life does, if it comes to that)
            stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
        ) -> None:
            assert name not in self.alive
            assert not stop.is_set()
            self.check_order(place)
            self.alive.add(name)
            try:
                life = lives.pop(0) if len(lives) > 1 else lives[0]
                await self.live(place, life, stop, task_status)
            finally:
                self.alive.remove(name)

        return ChildSpec(
            name=name,
            run=run,
            restart=script.restart,
            significant=script.significant and script.restart is not Restart.PERMANENT,
            start_budget=6.0,
            stop_budget=4.0,
        )

    async def live(
        self, place: int, life: Life, stop: trio.Event, task_status: trio.TaskStatus[None]
    ) -> None:
        with trio.move_on_after(life.ends_after):
            try:
                await trio.sleep(life.ready_after)
                task_status.started()
                await stop.wait()
                # Nobody is asked to stop before those behind are gone.
                assert not any(f"child-{behind}" in self.alive for behind in range(place + 1, 9))
                await trio.sleep(life.stop_takes)
            finally:
                with trio.move_on_after(life.clean_up, shield=True):
                    await trio.sleep_forever()
            return
        if life.fails:
            self.raised.append(RuntimeError(len(self.raised)))
            raise self.raised[-1]

    def check_order(self, place: int) -> None:
        """Nobody starts before those ahead are up or gone, where there is an order."""
        children = self.tree.snapshot().children
        if self.story.strategy is Strategy.ONE_FOR_ONE and children[place].generation > 1:
            return
        assert {child.state for child in children[:place]} <= UP_OR_GONE

    async def play(self) -> None:
        story, shutdown = self.story, make_shutdown(budget=20.0, margin=5.0)
        policy = RestartPolicy(
            intensity=story.intensity, period=200.0, backoff=Backoff(base=1.0, cap=8.0, jitter=0.5)
        )
        self.tree = Supervisor(
            "root",
            [self.child(place, script) for place, script in enumerate(story.scripts)],
            policy,
            shutdown=shutdown,
            strategy=story.strategy,
            handle=story.handle,
            on_event=self.told.append,
            random=lambda: 0.5,
        )
        stop = trio.Event()

        async def end() -> None:
            await trio.sleep(story.ends_at)
            self.asked_at = trio.current_time()
            if story.cancelled:
                nursery.cancel_scope.cancel()
            stop.set()

        async def request() -> None:
            await trio.sleep(story.shutdown_at)
            shutdown.request("the story says so")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            nursery.start_soon(request)
            try:
                await self.top(shutdown).run(stop)
            except RestartLimitExceeded as exc:
                inner = exc.__cause__ if story.nested else exc
                assert isinstance(inner, RestartLimitExceeded)
                self.outcome = inner
            nursery.cancel_scope.cancel()
        took = trio.current_time() - self.asked_at
        # Each has 4 s to stop, and shields itself for at most 3 s more.
        assert took <= 7.0 * len(story.scripts) + 1e-6
        self.check_books()

    def top(self, shutdown: Shutdown) -> Supervisor:
        if not self.story.nested:
            return self.tree
        child = self.tree.as_child(Restart.TRANSIENT, significant=True)
        return Supervisor("top", [child], RestartPolicy(), shutdown=shutdown)

    def check_books(self) -> None:
        assert self.alive == set()
        failed = self.outcome is not None
        # A failure below is none above when the end was wanted before it came up.
        assert (self.tree.state is ChildState.FAILED) is failed or (
            self.story.nested and not failed
        )
        ends = {child.state for child in self.tree.snapshot().children}
        assert ends <= {ChildState.NEW, ChildState.STOPPED, ChildState.FAILED}
        failures = [each.error for each in self.told if isinstance(each, ChildFailed)]
        own = [each for each in failures if not isinstance(each, ChildNotReady | ChildReturned)]
        late = [each.__cause__ for each in failures if isinstance(each, ChildNotReady)]
        # Each is told exactly once, if only as the cause of one that was late.
        assert sorted(map(id, own + [each for each in late if each])) == sorted(
            map(id, self.raised)
        )
        if self.outcome is not None:
            assert self.outcome.causes
            assert set(map(id, self.outcome.causes)) <= set(map(id, failures))


def make_life(dice: random.Random, *, first: bool) -> Life:
    """Throw the dice for one incarnation; the first ones are well for a while."""
    seconds = [0.0, 0.5, 1.0, 2.0, 3.0, 7.0]
    never = math.inf
    return Life(
        ready_after=dice.choice([0.0, 0.5] if first else [*seconds, never]),
        ends_after=dice.choice([5.0, 7.0, 20.0, never] if first else [*seconds, 30.0, never]),
        fails=dice.random() < 0.7,
        stop_takes=dice.choice([*seconds, never]),
        clean_up=dice.choice([0.0, 0.0, 3.0]),
    )


def make_script(dice: random.Random) -> Script:
    first = make_life(dice, first=dice.random() < 0.95)
    return Script(
        restart=dice.choice([Restart.PERMANENT, Restart.PERMANENT, *Restart]),
        significant=dice.random() < 0.2,
        lives=[first, *(make_life(dice, first=dice.random() < 0.4) for _ in range(3))],
    )


def make_story(seed: int) -> Story:
    dice = random.Random(seed)
    return Story(
        strategy=dice.choice([*Strategy]),
        scripts=[make_script(dice) for _ in range(dice.randint(1, 4))],
        intensity=dice.randint(0, 8),
        handle=dice.random() < 0.3,
        nested=dice.random() < 0.3,
        ends_at=dice.uniform(0.0, 80.0),
        cancelled=dice.random() < 0.5,
        shutdown_at=dice.choice([1000.0, 1000.0, dice.uniform(0.0, 80.0)]),
    )


@pytest.mark.parametrize("seed", range(200))
def test_no_story_breaks_the_rules(seed: int) -> None:
    watchdog = Watchdog()
    try:
        trio.run(
            Troupe(make_story(seed)).play,
            clock=trio.testing.MockClock(autojump_threshold=0),
            instruments=[watchdog],
        )
    finally:
        assert watchdog.steps < MOST_STEPS, "the supervisor does not sleep"
