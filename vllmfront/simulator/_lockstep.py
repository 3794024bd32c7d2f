"""Ranks that step together, as those of a mixture of experts do. Pure, but for waiting to meet.

A rank's wave logic, in the ways of both releases, and the group in which ranks agree every so many
steps: a vote that nobody leaves before all have cast theirs. A rank that waits for the others does
nothing else, and one that is dead makes all others fail at their next vote.
"""

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from vllmfront.engine.wire import StartWave
from vllmfront.simulator._messages import WaveNotice


@attrs.frozen
class Vote:
    """What one rank brings to the others."""

    unfinished: bool
    """Whether it has requests that can go on."""

    pausing: bool = False


@attrs.frozen
class Verdict:
    """What all ranks have agreed on."""

    unfinished: bool
    """Whether any rank has requests that can go on, or only some were told to pause."""

    pausing: bool
    """Whether all of them have been told to pause."""


class Group(Protocol):
    """What one rank has of the others."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def broken(self) -> str | None:
        """Why nobody can agree any more."""

    def vote(self, rank: int, vote: Vote) -> None:
        """Cast a vote; the verdict comes once all ranks have."""

    def has_verdict(self, rank: int) -> bool:
        """Tell whether the last vote of *rank* was decided, and it has not heard of it yet."""

    def take_verdict(self, rank: int) -> Verdict | None:
        """Return what was decided on the last vote of *rank*; None: others have not voted."""


class LockstepGroup:
    """Processes that have found each other at their start. One that ends, ends the group."""

    def __init__(self, size: int) -> None:
        self.broken: str | None = None
        """Why nobody can agree any more."""

        self.size = size
        self._members: dict[int, Callable[[], None]] = {}
        self._votes: dict[int, Vote] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._complete = trio.Event()

    def __repr__(self) -> str:
        return f"<LockstepGroup {len(self._members)}/{self.size}, broken: {self.broken}>"

    def admits(self, rank: int) -> bool:
        """Tell whether a new process of *rank* can belong to this group."""
        return self.broken is None and rank not in self._members

    def join(self, rank: int, wake: Callable[[], None]) -> None:
        """Belong to the group; *wake* is called when something was decided."""
        self._members[rank] = wake
        if len(self._members) == self.size:
            self._complete.set()

    async def wait_complete(self) -> None:
        """Return once all are there."""
        await self._complete.wait()

    def leave(self, rank: int) -> None:
        """Note that the process of *rank* has ended: the others cannot go on."""
        if self._members.pop(rank, None) is not None and self.broken is None:
            self.broken = f"rank {rank}, with which it steps together, has ended"
            self._wake_all()

    def vote(self, rank: int, vote: Vote) -> None:
        """Cast a vote; the verdict comes once all ranks have."""
        self._votes[rank] = vote
        if len(self._votes) == self.size:
            votes, self._votes = self._votes, {}
            told = sum(one.pausing for one in votes.values())
            verdict = Verdict(
                # Those that were told to pause run until all others were told, too.
                unfinished=any(one.unfinished for one in votes.values()) or 0 < told < self.size,
                pausing=told == self.size,
            )
            self._verdicts = dict.fromkeys(votes, verdict)
            self._wake_all()

    def take_verdict(self, rank: int) -> Verdict | None:
        """Return what was decided on the last vote of *rank*; None: others have not voted."""
        return self._verdicts.pop(rank, None)

    def has_verdict(self, rank: int) -> bool:
        """Tell whether the last vote of *rank* was decided, and it has not heard of it yet."""
        return rank in self._verdicts

    def _wake_all(self) -> None:
        for wake in list(self._members.values()):
            wake()


class LockstepMeeting:
    """Where processes find their group, as often as all of them are started anew."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._group = LockstepGroup(size)

    def join(self, rank: int, wake: Callable[[], None]) -> LockstepGroup:
        """Return the group of a new process of *rank*, which may not be complete yet."""
        if not self._group.admits(rank):
            self._group.leave(rank)
            self._group = LockstepGroup(self._size)
        self._group.join(rank, wake)
        return self._group


@attrs.define
class WaveLogic:
    """What one rank knows of waves, and does about them."""

    rank: int
    wakes_others: bool
    """Whether an idle rank has the others woken whenever it gets a request: since 0.33. Before
    that it does so only for a request of a wave that is over."""

    sync_interval: int
    """Steps from vote to vote; the first step of a wave has one as well."""

    wave: int = 0
    running: bool = False
    step: int = 0
    pausing: bool = False
    """Whether a pause was asked for, and not all others agree yet."""

    paused: bool = False
    """Whether all have agreed on it: wake-up calls are ignored until they have resumed."""

    _was_running: bool = False

    def request(self, wave: int, *, holds: bool) -> WaveNotice | None:
        """Take a request that carries *wave*; *holds* says that it may not be looked at now."""
        stale = wave < self.wave
        self.wave = max(wave, self.wave)
        if self.running or holds or not (stale or self.wakes_others):
            return None
        self.running = True
        return WaveNotice(started=self.wave)

    def wake_up(self, call: StartWave) -> None:
        """Take a wake-up call."""
        if self.paused or call.exclude == self.rank or call.wave < self.wave:
            return
        self.wave = call.wave
        self.running = True

    def pause(self) -> None:
        """Be told to pause: run, in order to get to the next vote."""
        self.pausing = self.running = True

    def check_resume(self) -> bool:
        """Be told to resume; return whether there is anything to resume from.

        Raises:
            RuntimeError: The pause is not complete.
        """
        if self.pausing or (self.running and self.paused):
            raise RuntimeError(
                "resume_scheduler called while pause is still in flight. Wait for the pause "
                "future to resolve before resuming."
            )
        return not self.running

    def resumed(self, verdict: Verdict) -> None:
        """Go on, as all others do."""
        self.paused = False
        self.running = verdict.unfinished

    def needs_vote(self) -> bool:
        """Count a step; return whether a vote is due after it."""
        self.step += 1
        if self.step == 1 or self.step % self.sync_interval == 0:
            return True
        self.running = self._was_running = True
        return False

    def decided(self, verdict: Verdict) -> WaveNotice | None:
        """Take the verdict after a step; return what the coordinator has to know."""
        was_running = self._was_running
        if verdict.pausing:
            self.paused, self.pausing = True, False
        self.running = self._was_running = verdict.unfinished
        if self.running:
            news = self.rank == 0 and not was_running and not self.pausing
            return WaveNotice(started=self.wave) if news else None
        ended, self.wave, self.step = self.wave, self.wave + 1, 0
        return WaveNotice(ended=ended) if self.rank == 0 else None
