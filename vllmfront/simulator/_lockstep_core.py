"""A core that steps together with others: it runs when they run, and waits for them. Pure."""

import attrs

from vllmfront.engine.wire import Add, StartWave, Utility
from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._core import SimulatedCore
from vllmfront.simulator._lockstep import Group, Verdict, Vote, WaveLogic
from vllmfront.simulator._messages import Message, StepStats
from vllmfront.simulator._scheduler import Pause

LEAST_DUMMY_SECONDS = 0.001
"""The shortest dummy step: a rank that only keeps others company takes no whole processor."""


class LockstepCore(SimulatedCore):
    """One of several ranks.

    After each step, or dummy step where it has nothing to do, it may have to vote on going on.
    Until all others have, it does not even look at what comes in.
    """

    def __init__(self, config: SimulatorConfig, rank: int) -> None:
        super().__init__(config, rank)
        self.waves = WaveLogic(
            rank, wakes_others=config.wakes_others, sync_interval=config.sync_interval
        )
        self._rank = rank
        self._group: Group | None = None
        self._dummy_due: float | None = None
        """When the dummy step in flight ends."""

        self._voting = False
        self._resuming = False
        """Whether the present vote is on going on after a pause."""

        self._withheld: list[Message] = []
        """Answers to those who wait for that."""

        self._utilities.on_pause = self.waves.pause
        self._utilities.may_resume = self.waves.check_resume
        self._utilities.on_resume = self._resume

    def join(self, group: Group) -> None:
        """Vote in *group* from now on."""
        self._group = group

    def wake_at(self, now: float) -> float | None:
        if self.dead is not None:
            return None
        if self._voting:
            # Whoever votes last wakes the others; what else there is to say has been said.
            return now if self._outbox or self._decided else None
        if self._dummy_due is not None:
            return now if self._outbox else self._dummy_due
        if self.waves.running and self._scheduler.due is None:
            return now
        return super().wake_at(now)

    def advance(self, now: float) -> list[Message]:
        if self.dead is None and self._voting:
            self._take_verdict(now)
        if self._dummy_due is not None and self._dummy_due <= now:
            self._dummy_due = None
            self._end_step()
        return super().advance(now)

    @property
    def _decided(self) -> bool:
        assert self._group is not None
        return self._group.broken is not None or self._group.has_verdict(self._rank)

    def _listens(self) -> bool:
        return super()._listens() and not self._voting and self._dummy_due is None

    def _holds_work(self) -> bool:
        return self.waves.running or self._voting or super()._holds_work()

    def _begin(self, now: float) -> bool:
        if super()._begin(now):
            return True
        if not (self.waves.running or super()._holds_work()):
            return False
        self._dummy_due = now + max(self.config.step_time, LEAST_DUMMY_SECONDS)
        return True

    def _finish_step(self, now: float) -> None:
        super()._finish_step(now)
        if self.dead is None:
            self._end_step()

    def _end_step(self) -> None:
        if self.waves.needs_vote():
            self._vote()

    def _vote(self) -> None:
        assert self._group is not None
        self._voting = True
        unfinished = super()._holds_work()
        self._group.vote(self._rank, Vote(unfinished, pausing=self.waves.pausing))

    def _take_verdict(self, now: float) -> None:
        del now
        assert self._group is not None
        if self._group.broken is not None:
            self._die(self._group.broken)
            return
        verdict = self._group.take_verdict(self._rank)
        if verdict is None:
            return
        self._voting = False
        if self._resuming:
            self._end_resume(verdict)
            return
        notice = self.waves.decided(verdict)
        if notice is not None and self.coordinated:
            self._outbox.append(notice)

    def _note_wave(self, add: Add) -> None:
        if self.coordinated:
            holds = self._scheduler.pause is not Pause.NOTHING
            notice = self.waves.request(add.current_wave, holds=holds)
            if notice is not None:
                self._outbox.append(notice)

    def _wake_up(self, call: StartWave) -> None:
        self.waves.wake_up(call)

    def _call(self, call: Utility, now: float) -> None:
        before = len(self._outbox)
        super()._call(call, now)
        if self._resuming:
            self._withheld = self._outbox[before:]
            del self._outbox[before:]

    def _resume(self) -> None:
        self._resuming = True
        self._vote()

    def _end_resume(self, verdict: Verdict) -> None:
        self._resuming = False
        self.waves.resumed(verdict)
        self._outbox += self._withheld
        self._withheld = []

    def _levels(self) -> StepStats:
        return attrs.evolve(super()._levels(), wave=self.waves.wave, step=self.waves.step)
