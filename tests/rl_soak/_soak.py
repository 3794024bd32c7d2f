"""The soak: cycles of updates under rollouts that never stop, and the books in the end."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import msgspec
import trio

from tests.chaos._books import Page, growth_complaints, idle_complaints, open_page, settle
from tests.chaos._frontend import ADMIN_KEY, HOST
from tests.rl_soak._deployment import RlDeployment, open_deployment
from tests.rl_soak._judge import LeakWatch, Surroundings, window_leaks
from tests.rl_soak._pieces import version_name
from tests.rl_soak._rollouts import Fleet, summary
from tests.rl_soak._scenario import Cycle, draw_cycle
from tests.rl_soak._task import Done, News, Task
from tests.rl_soak._trainers import Trainer, open_trainers
from tests.rl_soak._truth import DEFAULT
from vllmfront.testing import HttpCall, exchange, kill

CYCLE_SECONDS = 55.0
"""In which a cycle must be over, whatever happens in it: less than a rollout's patience."""

LEASE_SECONDS = 2.0
POLL_SECONDS = 0.1
LOOK_SECONDS = 0.5
"""From one look at what engines hear to the next."""

REMEMBERED = 6
"""Cycles whose weights may still show up in an answer that tells no versions."""

WARM = 10
"""Cycles after which all is warm, and nothing may grow any more."""

Say = Callable[[str], None]


@attrs.frozen(kw_only=True)
class Soak:
    """What is run."""

    seed: int
    folder: Path
    cycles: int = 200
    first: int = 0
    """Number of the first cycle; they follow from the seed and their number."""

    rollouts: int = 64
    step_ms: float = 15.0


@attrs.define
class Report:
    """What it came to."""

    violations: list[str] = attrs.field(factory=list)
    troubles: Counter[str] = attrs.field(factory=Counter)
    failed: int = 0
    """Cycles whose first attempt failed."""

    longest: float = 0.0
    """Seconds of a cycle."""

    requests: int = 0
    """That engines have heard."""

    fleet: dict[str, object] = attrs.field(factory=dict)
    lines: list[str] = attrs.field(factory=list)


@attrs.define
class Running:
    """A soak on its way."""

    soak: Soak
    deployment: RlDeployment
    trainers: list[Trainer]
    say: Say
    report: Report = attrs.field(factory=Report)
    watch: LeakWatch = attrs.field(factory=LeakWatch)
    _spans: list[tuple[float, float, frozenset[str]]] = attrs.field(factory=list)
    """From when to when, and the modes of pauses, of each cycle."""

    _versions: list[str] = attrs.field(factory=lambda: [DEFAULT])

    @property
    def port(self) -> int:
        return self.deployment.frontend.port

    def surroundings(self, began: float, ended: float) -> Surroundings:
        modes = [
            own for begin, end, own in self._spans if begin <= ended and began <= end + POLL_SECONDS
        ]
        return Surroundings(
            modes=frozenset[str]().union(*modes),
            troubled=self.deployment.troubled(began, ended),
            versions=[DEFAULT, *self._versions[-REMEMBERED:]],
        )

    async def run(self) -> None:
        """Run all cycles, and find out what is left afterwards."""
        await self.deployment.wait_ready()
        fleet = Fleet(self.soak.seed, self.port, self.surroundings)
        idle = await open_page(self.deployment.frontend)
        warm: Page | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_leaks)
            async with trio.open_nursery() as rollouts:
                rollouts.start_soon(fleet.run, self.soak.rollouts)
                for number in range(self.soak.first, self.soak.first + self.soak.cycles):
                    await self._cycle(draw_cycle(self.soak.seed, number), fleet)
                    if number == self.soak.first + WARM:
                        warm = await open_page(self.deployment.frontend)
                fleet.end()
            nursery.cancel_scope.cancel(reason="over")
        self._look()
        await self._check_books(idle, warm)
        self.report.requests = self.watch.requests
        self.report.fleet = summary(fleet)

    # One cycle

    async def _cycle(self, cycle: Cycle, fleet: Fleet) -> None:
        await trio.sleep(cycle.interval)
        began, violations, answers = time.time(), len(fleet.violations), fleet.outcomes.total()
        own, other = self._tasks(cycle)
        self._versions += [task.version for task in (own, other) if task is not None]
        self._spans.append((began, float("inf"), cycle.modes))
        self.deployment.prepare(cycle.strikes)
        heard: list[Done | News] = []
        with trio.move_on_after(CYCLE_SECONDS) as patience:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._update, self.trainers[0], cycle, own, heard)
                if other is not None:
                    nursery.start_soon(self._update, self.trainers[1], cycle, other, heard)
                nursery.start_soon(self._kill_engine, cycle)
            self.deployment.prepare(((), ()))
            await self._wait_served(own, heard)
        if patience.cancelled_caught:
            self._wrong(cycle, f"not over after {CYCLE_SECONDS:g} s: {await self._stand()}")
            await self._force()
        took = time.time() - began
        self._spans[-1] = (began, time.time(), cycle.modes)
        self._look()
        windows = [window for line in heard for window in line.windows]
        for leak in window_leaks(windows, self.watch.adds):
            self._wrong(cycle, leak)
        self.watch.adds.clear()
        self.report.longest = max(self.report.longest, took)
        self.report.troubles.update(cycle.troubles)
        for violation in fleet.violations[violations:]:
            self._wrong(cycle, violation)
        self._tell(cycle, took, heard, fleet.outcomes.total() - answers)

    def _tasks(self, cycle: Cycle) -> tuple[Task, Task | None]:
        own = Task(
            server=f"http://{HOST}:{self.port}",
            key=ADMIN_KEY,
            owner="first",
            version=version_name(cycle.number, "a", cycle.pieces),
            pieces=cycle.pieces,
            mode=cycle.mode,
            style=cycle.style,
            clear_cache=cycle.clear_cache,
            lease=LEASE_SECONDS,
            dies=cycle.dies,
            spoiled=cycle.spoiled,
            gives_up=cycle.gives_up,
            budget=CYCLE_SECONDS,
        )
        if cycle.rival is None:
            return own, None
        other = Task(
            server=own.server,
            key=own.key,
            owner="rival",
            version=version_name(cycle.number, "b", 2),
            pieces=2,
            mode=cycle.rival,
            lease=LEASE_SECONDS,
            budget=CYCLE_SECONDS,
        )
        return own, other

    async def _update(
        self, trainer: Trainer, cycle: Cycle, task: Task, heard: list[Done | News]
    ) -> None:
        """Have *task* done, by another trainer where the first is killed."""
        line = await trainer.do(task)
        heard.append(line)
        if isinstance(line, News):
            values = {"owner": task.owner if cycle.heir else f"{task.owner} after", "dies": None}
            line = await trainer.do(_replace(task, **values))
            heard.append(line)
        if isinstance(line, Done) and not line.updated:
            self._wrong(cycle, f"a trainer gives up after {line.attempts[-3:]}")

    async def _kill_engine(self, cycle: Cycle) -> None:
        if cycle.killed is not None:
            await trio.sleep(cycle.killed_after)
            pid = self.deployment.places[cycle.killed].pid()
            if pid is not None:
                kill(pid)

    async def _wait_served(self, task: Task, heard: list[Done | News]) -> None:
        """Return once all engines are up, have new weights, and nothing is paused.

        An engine that was lost after the update has old ones: then they are sent once more.
        """
        while True:
            await self.deployment.wait_ready()
            info = await self._get("/weight_info")
            paused = (await self._get("/is_paused")).get("is_paused")
            fresh = info.get("weight_version") in self._versions[-2:] and not info.get("stale")
            if fresh and paused is False:
                return
            again = _replace(task, dies=None, spoiled=False, gives_up=False)
            heard.append(await self.trainers[0].do(again))
            await trio.sleep(POLL_SECONDS)

    async def _get(self, path: str) -> dict[str, object]:
        answer: dict[str, object] = json.loads((await self.deployment.frontend.get(path)).body)
        return answer

    async def _stand(self) -> str:
        with trio.move_on_after(10):
            holds = (await self.deployment.frontend.inside()).get("holds")
            return f"{await self._get('/weight_info')}, held by {holds}"
        return "the frontend does not answer"

    async def _force(self) -> None:
        """Do what nobody should have to, so that the cycles after this one are worth something."""
        key = {"authorization": f"Bearer {ADMIN_KEY}"}
        for path in ("/shutdown_weight_transfer_engine", "/resume?force=true"):
            with trio.move_on_after(10):
                await exchange(HOST, self.port, HttpCall(path=path, headers=key))

    # What is wrong, and what was seen

    def _wrong(self, cycle: Cycle, what: str) -> None:
        text = f"cycle {cycle.number} ({', '.join(cycle.troubles) or 'calm'}): {what}"
        self.report.violations.append(text)
        self.say(f"  WRONG (seed {self.soak.seed}) {text}")

    async def _watch_leaks(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        for leak in self.watch.hear(self.deployment.heard()):
            self.report.violations.append(leak)
            self.say(f"  WRONG (seed {self.soak.seed}) {leak}")

    def _tell(self, cycle: Cycle, took: float, heard: list[Done | News], answers: int) -> None:
        failures = [one for line in heard if isinstance(line, Done) for one in line.attempts]
        killed = sum(isinstance(line, News) for line in heard)
        self.report.failed += bool(failures or killed)
        troubles = ", ".join(cycle.troubles) or "calm"
        self.say(
            f"cycle {cycle.number} {cycle.style} {cycle.mode} {took:.1f} s, {answers} answers: "
            f"{troubles}; {len(failures)} attempts failed"
        )
        for failure in failures:
            self.report.lines.append(f"cycle {cycle.number}: {failure}")

    async def _check_books(self, idle: Page, warm: Page | None) -> None:
        """Look for what is left: more memory than once all was *warm*, more else than *idle*."""
        memory = sys.maxsize if warm is None else warm.held.memory
        first = attrs.evolve(idle, held=attrs.evolve(idle.held, memory=memory))

        def complain(page: Page) -> list[str]:
            found = [*idle_complaints(page), *growth_complaints(first, page)]
            if page.inside.get("holds"):
                found.append(f"held back in the end: {page.inside['holds']}")
            return found

        async def wait() -> None:
            await trio.sleep(POLL_SECONDS)

        page, complaints = await settle(self.deployment.frontend, complain, wait)
        self.report.violations += complaints
        held = page.held
        self.say(
            f"frontend: {page.tasks} tasks, {held.descriptors} descriptors, {held.threads} threads,"
            f" {held.memory >> 20} MiB"
        )


def _replace(task: Task, **values: object) -> Task:
    return msgspec.structs.replace(task, **values)


async def run_soak(soak: Soak, say: Say) -> Report:
    """Run it, and tell *say* how it goes; what is wrong is in the report."""
    async with (
        open_deployment(soak.folder, step_ms=soak.step_ms) as deployment,
        open_trainers(soak.folder, 2) as trainers,
    ):
        running = Running(soak, deployment, trainers, say)
        await running.run()
    return running.report
