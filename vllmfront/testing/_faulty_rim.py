"""Makes one simulated engine fail by a plan, at its rim: its core works on as if all were well."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import attrs

from vllmfront.engine.wire import Abort, Add, Utility
from vllmfront.simulator import Encode, Mortal, Rim, RimFactory, Spoken, StartPhase, StepOutput
from vllmfront.testing._fault import Fault, FaultKind, Moment
from vllmfront.testing._plan import FaultPlan

NO_BYTE = b"\xc1"
"""The one byte that MessagePack never uses."""

MANY = 1_000_000
"""Requests that a lying engine claims to have."""

_STANDING = (FaultKind.CRASH, FaultKind.DIE, FaultKind.HANG, FaultKind.STALL)
"""Kinds that strike once; the others concern a number of messages to come."""


@attrs.frozen(kw_only=True)
class Incident:
    """A fault that has happened, to one message where it concerns messages; or good news."""

    rank: int
    life: int
    fault: Fault | None
    """None: the engine has become ready."""

    time: float
    """Seconds of Trio's clock."""

    request_ids: Sequence[str] = ()
    """The engine's ids of the requests that were tampered with."""


Observer = Callable[[Incident], None]


class FaultyRim(Rim):
    """Counts what passes, and lets the plan's faults happen when their count has come.

    Pure: the sockets are the engine's, the time comes from the caller.
    """

    def __init__(
        self, faults: Sequence[Fault], rank: int, life: int, observer: Observer | None = None
    ) -> None:
        """Wait for *faults*, all of one life of one rank; tell *observer* of each that happens."""
        self._waiting = list(faults)
        self._rank = rank
        self._life = life
        self._observer = observer
        self._engine: Mortal | None = None
        self._counts: Counter[Moment] = Counter()
        self._active: dict[FaultKind, tuple[Fault, int]] = {}
        """Faults that go on, with how many messages they still concern."""

        self._held: list[bytes] | None = None
        """The message that the next one overtakes."""

        self._asleep_until = -math.inf
        self._ready_at = math.inf
        self._used: Counter[FaultKind] = Counter()

    def attach(self, engine: Mortal) -> None:
        self._engine = engine

    def reached(self, phase: StartPhase, now: float) -> bool:
        if phase is StartPhase.READY:
            self._ready_at = now
            self._report(None, now)
            return True
        due = [one for one in self._waiting if one.on is Moment.START and one.at == phase]
        for fault in due:
            self._waiting.remove(fault)
            self._report(fault, now)
            if fault.kind is FaultKind.CRASH:
                return False
            self._stand_still(fault, now)
        return True

    def hears(self, message: Add | Abort | Utility, now: float) -> bool:
        if isinstance(message, Add):
            self._count(Moment.REQUEST, now)
            return not self._use(FaultKind.LOSE, now, [message.internal_id])
        if isinstance(message, Utility):
            self._count(Moment.CALL, now)
            return not self._use(FaultKind.MUTE, now)
        return True

    def says(self, message: Spoken, encode: Encode, now: float) -> Sequence[list[bytes]]:
        rows = message.rows if isinstance(message, StepOutput) else ()
        ids = [request_id for request_id, _ in rows]
        if ids and self._count(Moment.OUTPUT, now):
            return ()  # the engine is gone
        if isinstance(message, StepOutput):
            message = self._lie(message, now)
        frames = encode(message)
        if not ids:
            return self._after_held([frames])
        if slow := self._use(FaultKind.SLOW, now):
            self._asleep_until = max(self._asleep_until, now + slow.seconds)
        if self._use(FaultKind.DROP, now, ids):
            return ()
        if self._use(FaultKind.DUPLICATE, now, ids):
            return self._after_held([frames, frames])
        if self._use(FaultKind.GARBLE, now, ids):
            return self._after_held([self._garble(frames)])
        if self._held is None and self._use(FaultKind.REORDER, now, ids):
            self._held = frames
            return ()
        return self._after_held([frames])

    def tick(self, now: float) -> None:
        for fault in [one for one in self._waiting if one.on is Moment.TIME]:
            if self._ready_at + fault.at <= now:
                self._waiting.remove(fault)
                self._strike(fault, now)

    def wake_at(self) -> float:
        times = (fault.at for fault in self._waiting if fault.on is Moment.TIME)
        return self._ready_at + min(times, default=math.inf)

    def asleep_until(self) -> float:
        return self._asleep_until

    def _count(self, moment: Moment, now: float) -> bool:
        """Count one of *moment*; return whether the engine ended by it."""
        self._counts[moment] += 1
        ended = False
        for fault in [one for one in self._waiting if one.on is moment]:
            if fault.at <= self._counts[moment]:
                self._waiting.remove(fault)
                ended = self._strike(fault, now) or ended
        return ended

    def _strike(self, fault: Fault, now: float) -> bool:
        """Let *fault* begin; return whether the engine ended by it."""
        if fault.kind not in _STANDING:
            left = self._active.get(fault.kind, (fault, 0))[1]
            self._active[fault.kind] = (fault, left + fault.count)
            return False
        self._report(fault, now)
        assert self._engine is not None
        if fault.kind is FaultKind.CRASH:
            self._engine.vanish()
        elif fault.kind is FaultKind.DIE:
            self._engine.die(str(fault))
        else:
            self._stand_still(fault, now)
            return False
        return True

    def _stand_still(self, fault: Fault, now: float) -> None:
        end = math.inf if fault.kind is FaultKind.HANG else now + fault.seconds
        self._asleep_until = max(self._asleep_until, end)

    def _use(self, kind: FaultKind, now: float, ids: Sequence[str] = ()) -> Fault | None:
        """Return the fault of *kind* that goes on, if one does, and use it up by one."""
        if kind not in self._active:
            return None
        fault, left = self._active.pop(kind)
        if left > 1:
            self._active[kind] = (fault, left - 1)
        self._used[kind] += 1
        self._report(fault, now, ids)
        return fault

    def _report(self, fault: Fault | None, now: float, ids: Sequence[str] = ()) -> None:
        if self._observer is not None:
            self._observer(
                Incident(
                    rank=self._rank,
                    life=self._life,
                    fault=fault,
                    time=now,
                    request_ids=tuple(ids),
                )
            )

    def _after_held(self, messages: list[list[bytes]]) -> list[list[bytes]]:
        """Let *messages* overtake the one that was held back."""
        if self._held is not None:
            messages = [*messages, self._held]
            self._held = None
        return messages

    def _garble(self, frames: list[bytes]) -> list[bytes]:
        """Spoil a message in one of two ways in turn, so that no decoder can take it."""
        first, *others = frames
        if self._used[FaultKind.GARBLE] % 2:
            return [first[: len(first) // 2]]
        return [NO_BYTE + first[1:], *others]

    def _lie(self, message: StepOutput, now: float) -> StepOutput:
        """Claim to be swamped and idle in turn, while there is reason to lie."""
        if message.stats is None or not self._use(FaultKind.LIE, now):
            return message
        number, usage = (MANY, 1.0) if self._used[FaultKind.LIE] % 2 else (0, 0.0)
        stats = attrs.evolve(message.stats, running=number, waiting=number, kv_cache_usage=usage)
        return attrs.evolve(message, stats=stats)


def faulty_rims(plan: FaultPlan, observer: Observer | None = None) -> RimFactory:
    """Return what makes the rims for *plan*: an argument of ``open_simulator``.

    Args:
        plan: Which faults come when.
        observer: Is called with each fault that happens, in the engine's task: it must not wait.
    """

    def make(rank: int, life: int) -> Rim:
        return FaultyRim(plan.of_life(rank, life), rank, life, observer)

    return make
