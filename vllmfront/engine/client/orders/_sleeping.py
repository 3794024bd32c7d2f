"""Sending engines to sleep, and waking them up: a hold of the gate, and what it takes of engines.

While anything of an engine's memory sleeps, no request reaches it. A pause and a sleep may overlap:
generation goes on once there is neither. An engine that has woken up goes on by itself, so in a
pause it is told to stand still again in the same breath.
"""

import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.engine.client.membership import EngineRank, EngineState, Membership
from vllmfront.engine.client.orders._adapters import Adapters
from vllmfront.engine.client.orders._outcomes import failure_of
from vllmfront.engine.client.orders._pauses import Pauses
from vllmfront.engine.client.orders._utility import Outcome, UtilityCalls
from vllmfront.engine.pause import PARTS, Hold, HoldGate, HoldKind, PauseMode, PausePhase, wall_of
from vllmfront.errors import (
    ControlCallTimeout,
    StateConflict,
)

_LOGGER = logging.getLogger(__name__)

_DEEPEST = 2
"""The level at which an engine keeps nothing, adapters neither."""


class Sleeping:
    """What an operator may order; one order after the other.

    Each raises ControlCallFailed, naming the engines that failed, ControlCallTimeout, or
    EngineUnavailable where no engine has ever served.
    """

    def __init__(
        self,
        gate: HoldGate,
        calls: UtilityCalls,
        membership: Membership,
        pauses: Pauses,
        adapters: Adapters,
    ) -> None:
        self._gate = gate
        self._calls = calls
        self._membership = membership
        self._pauses = pauses
        self._standstill = pauses.standstill
        self._adapters = adapters
        self._turn = trio.Lock()

    def __repr__(self) -> str:
        return f"<Sleeping {'awake' if self.hold is None else sorted(self.hold.asleep)}>"

    @property
    def hold(self) -> Hold | None:
        """What sleeps, since when; None: nothing."""
        return self._gate.find(HoldKind.SLEEP)

    async def fall_asleep(
        self, level: int, mode: PauseMode, *, owner: str | None = None, seconds: float
    ) -> None:
        """Let no request pass, and have all engines sleep.

        Args:
            level: 0 only stands still, 1 keeps the weights in main memory, 2 keeps nothing.
            mode: What becomes of requests in flight.
            owner: Who asks, where they say so.
            seconds: Until the order is given up; engines may still follow it then, and the gate
                stays closed until they are woken up.
        """
        async with self._in_turn("sleep", seconds):
            self._check_served()
            before = self.hold
            hold = self._falling(level, mode, owner)
            caught = self._standstill.hold(hold)
            ranks = self._standstill.serving()
            outcomes: list[Outcome] = []
            with trio.move_on_after(seconds) as scope:
                outcomes = await self._standstill.setup.order(hold, ranks)
            if scope.cancelled_caught:
                raise ControlCallTimeout(
                    f"sleep timed out: the engines do not all sleep after {seconds:g} seconds "
                    f"(mode {mode.value}). No new request passes; POST /wake_up takes it back",
                    phase="sleep",
                    failures={},
                )
            error = failure_of("sleep", outcomes)
            if error is not None:
                await self._take_back(before, ranks, seconds)
                raise error
            _LOGGER.info("The engines sleep, level %d, mode %s", level, mode.value)
            if mode is PauseMode.ABORT:
                await self._standstill.end_aborted(caught)

    async def wake_up(self, tags: Collection[str] | None, *, seconds: float) -> bool:
        """Bring back what sleeps, or only the parts *tags*; return whether nothing sleeps then."""
        async with self._in_turn("wake_up", seconds):
            ranks = self._standstill.serving()
            if not ranks:
                raise self._membership.unavailable()
            outcomes = await self._rouse(ranks, tags, seconds)
            error = failure_of("wake_up", outcomes)
            if error is not None:
                raise error
            if all(outcome.result is True for outcome in outcomes):
                await self._let_go_on()
                return True
            self._note_asleep(PARTS if tags is None else frozenset(tags))
            return False

    async def release_kv_cache(self, *, seconds: float) -> None:
        """Have all engines, which must stand still by a pause, let go of their caches.

        Raises:
            StateConflict: They do not, or something sleeps already.
        """
        async with self._in_turn("release_kv_cache_memory", seconds):
            window = self._pauses.window
            if self.hold is not None or window is None or window.phase is not PausePhase.PAUSED:
                state = "running" if window is None else window.phase.value
                state = "sleeping" if self.hold is not None else state
                raise StateConflict(
                    "POST /release_kv_cache_memory takes a pause that is complete, and engines of "
                    f"which nothing sleeps; the state is {state}",
                    state=state,
                )
            ranks = self._standstill.serving()
            outcomes = await self._calls.call_ranks_each(
                ranks, "release_kv_cache_memory", (), seconds, wait_for_all=True
            )
            error = failure_of("release_kv_cache_memory", outcomes)
            if error is not None:
                raise error
            hold = self._falling(1, window.mode, window.owner)
            self._gate.close(attrs.evolve(hold, asleep=frozenset({"kv_cache"})))
            self._standstill.setup.note(ranks)

    def _check_served(self) -> None:
        if self._membership.state.value in {EngineState.LOADING, EngineState.FAILED}:
            raise self._membership.unavailable()

    def _falling(self, level: int, mode: PauseMode, owner: str | None) -> Hold:
        """Return the hold of engines that go to sleep, deeper than before where they slept."""
        before, now = self.hold, trio.current_time()
        since = now if before is None else before.since
        asleep = PARTS if level > 0 else frozenset()
        if before is not None:
            level, asleep = max(level, before.level), asleep | before.asleep
        return Hold(
            kind=HoldKind.SLEEP,
            mode=mode,
            since=since,
            wall=wall_of(since),
            owner=owner,
            level=level,
            asleep=asleep,
        )

    async def _take_back(
        self, before: Hold | None, ranks: Sequence[EngineRank], seconds: float
    ) -> None:
        """Wake those up that have gone to sleep although others refused; all were as *before*."""
        if before is not None:
            self._gate.close(before)
            return
        outcomes = await self._rouse(ranks, None, seconds)
        error = failure_of("wake_up", outcomes)
        if error is not None:
            _LOGGER.warning("%s; no request passes until POST /wake_up succeeds", error)
            return
        await self._let_go_on()

    async def _rouse(
        self, ranks: Sequence[EngineRank], tags: Collection[str] | None, seconds: float
    ) -> list[Outcome]:
        args = [None if tags is None else sorted(tags)]
        pause = self._gate.find(HoldKind.PAUSE)
        # Without its cached blocks, which may be asleep, and of a kind that all versions know.
        then = None if pause is None else ("pause_scheduler", ("keep", False))
        return await self._calls.call_ranks_each(
            ranks, "wake_up", args, seconds, wait_for_all=True, then=then
        )

    async def _let_go_on(self) -> None:
        """Take note that nothing sleeps any more."""
        hold, pause = self.hold, self._gate.find(HoldKind.PAUSE)
        if hold is not None and hold.level >= _DEEPEST:
            await self._adapters.reload()
        ranks = self._standstill.serving()
        if pause is not None:
            await self._standstill.setup.order(pause, ranks)
        self._gate.open(HoldKind.SLEEP)
        self._standstill.setup.note(ranks)
        if hold is not None:
            seconds = trio.current_time() - hold.since
            _LOGGER.info("The engines are awake, after %.1f s", seconds)

    def _note_asleep(self, back: frozenset[str]) -> None:
        """Take note that *back* is there again, and something else still sleeps."""
        hold = self.hold or self._falling(1, PauseMode.ABORT, None)
        asleep = hold.asleep - back or hold.asleep
        self._gate.close(attrs.evolve(hold, asleep=asleep))
        self._standstill.setup.note(self._standstill.serving())
        _LOGGER.info("The engines sleep on: %s", ", ".join(sorted(asleep)))

    @asynccontextmanager
    async def _in_turn(self, phase: str, seconds: float) -> AsyncGenerator[None]:
        with trio.move_on_after(seconds) as scope:
            await self._turn.acquire()
        if scope.cancelled_caught:
            raise ControlCallTimeout(
                f"{phase} timed out waiting for another order about sleep to end",
                phase=phase,
                failures={},
            )
        try:
            yield
        finally:
            self._turn.release()
