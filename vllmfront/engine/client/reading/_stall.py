"""Telling an engine that is slow from one that has stopped: one look at all every few seconds.

An engine that works on requests sends outputs, or at least statistics that show a step's work. One
that has sent neither for long, with requests in flight all the while, is stalled; it may also be
lost for that, so that whoever manages its process replaces it.
"""

import enum
from collections.abc import Callable, Collection

import attrs
import trio

from vllmfront.engine.client.membership import EngineRank, Membership, RankState
from vllmfront.engine.client.orders import UtilityCalls
from vllmfront.errors import EngineStalled, EngineUnavailable, Reason

LOOKS = 20
"""Looks at an engine within the time that it may be silent."""

_LOOKS_AN_ANSWER = 10
"""Looks until an engine is asked again whether it lives."""

_LATE_LOOKS = 3
"""A look that is so many periods late says more about us than about any engine."""

_PAUSING = {"pause_generation", "pause_scheduler", "sleep"}
_RESUMING = {"resume_scheduler", "wake_up"}


class Verdict(enum.Enum):
    """What follows from an engine's silence."""

    PATIENCE = enum.auto()
    STALLED = enum.auto()
    LOST = enum.auto()


def judge(
    state: RankState, silent: float, *, stall_after: float, lose_after: float | None
) -> Verdict:
    """Return what *silent* seconds of an engine with requests in flight mean."""
    if lose_after is not None and silent >= lose_after:
        return Verdict.LOST
    if state is RankState.READY and silent >= stall_after:
        return Verdict.STALLED
    return Verdict.PATIENCE


@attrs.define
class _Mark:
    """What an engine had said by when."""

    incarnation: int
    signs_of_life: int
    since: float
    ask_at: float = 0.0
    """When to ask whether it lives, should it have nothing to talk about."""


class StallWatch:
    """Looks at all engines of a client; ``serve`` is its task."""

    def __init__(
        self,
        membership: Membership,
        calls: UtilityCalls,
        *,
        stall_after: float,
        lose_after: float | None,
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        """Judge silence of *stall_after* and of *lose_after* seconds; None loses none for it.

        *held* tells whether somebody, in whatever process, has told engines to stand still.
        """
        self._held = held
        self._membership = membership
        self._calls = calls
        self._stall_after = stall_after
        self._lose_after = lose_after
        self._period = min(stall_after, lose_after or stall_after) / LOOKS
        self._marks: dict[EngineRank, _Mark] = {}
        self._paused = set[EngineRank]()
        self._last_look = trio.current_time()
        calls.on_success(self._note_call)

    async def serve(self) -> None:
        """Look at them until cancelled."""
        while True:
            await trio.sleep(self._period)
            self._look(trio.current_time())

    def _note_call(self, method: str, engines: Collection[EngineRank]) -> None:
        """Take note that *engines* have done *method*: paused ones are silent on purpose."""
        if method in _PAUSING:
            self._paused.update(engines)
        elif method in _RESUMING:
            self._paused.difference_update(engines)

    def _look(self, now: float) -> None:
        if now - self._last_look > _LATE_LOOKS * self._period:
            self._marks.clear()  # what they said meanwhile is not read yet
        self._last_look = now
        for engine in self._membership.ranks.values():
            if engine.state.connected:
                self._look_at(engine, now)
            else:
                self._marks.pop(engine, None)
                self._paused.discard(engine)

    def _look_at(self, engine: EngineRank, now: float) -> None:
        stalled = engine.state is RankState.STALLED
        signs = engine.load.share_signs(engine.signs_of_life)
        if self._held() or engine in self._paused or not (engine.load.in_flight or stalled):
            self._marks.pop(engine, None)
            return
        mark = self._marks.get(engine)
        if mark is None or mark.incarnation != engine.incarnation or mark.signs_of_life != signs:
            self._marks[engine] = _Mark(engine.incarnation, signs, now)
            return
        silent = now - mark.since
        verdict = judge(
            engine.state, silent, stall_after=self._stall_after, lose_after=self._lose_after
        )
        if verdict is Verdict.LOST:
            self._membership.lose(engine, _lost(engine, silent))
        elif verdict is Verdict.STALLED:
            self._membership.engine_silent(engine, _stalled(engine, silent))
        elif stalled and not engine.load.in_flight and now >= mark.ask_at:
            # It has nothing to talk about any more: its answer says that it can be asked again.
            # Without requests it would stay out for ever, so that a lost answer is not the last.
            mark.ask_at = now + _LOOKS_AN_ANSWER * self._period
            self._calls.probe(engine)


def _stalled(engine: EngineRank, silent: float) -> EngineUnavailable:
    return EngineUnavailable(
        f"engine {engine.rank} has been silent for {silent:.0f} seconds with "
        f"{engine.load.in_flight} requests in flight",
        reason=Reason.STALLED,
    )


def _lost(engine: EngineRank, silent: float) -> EngineStalled:
    return EngineStalled(
        f"engine {engine.rank} was silent for {silent:.0f} seconds with requests in flight, "
        "more than --engine-stall-restart allows"
    )
