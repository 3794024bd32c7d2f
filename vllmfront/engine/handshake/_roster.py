"""Which of the expected engines has come how far.

An engine says HELLO, gets its addresses, loads for minutes, registers on the input socket and
says READY. The last two travel over different sockets, so either may be seen first; with both it
has joined. A HELLO from a rank that was there before is a new process: it starts anew.
"""

import enum
import math
from collections.abc import Collection, Sequence

import attrs
import trio

from vllmfront.engine.wire import Registration
from vllmfront.errors import ProtocolError


class Step(enum.Enum):
    """What an engine does to join, under the name that operators see."""

    HELLO = "HELLO"
    READY = "READY"
    REGISTRATION = "registration"


@attrs.define
class _Progress:
    done: set[Step] = attrs.field(factory=set)
    registration: Registration | None = None
    since: float | None = None
    """When it last did a step, or its process was started, None where nothing more is awaited
    of it."""


class Roster:
    """The expected ranks and the steps that each has done, and when; *now* is Trio's clock."""

    def __init__(
        self, ranks: Sequence[int], *, owns_handshake: bool = True, others: Collection[int] = ()
    ) -> None:
        """Expect *ranks*.

        Args:
            ranks: Global data-parallel ranks, 0 to 65535.
            owns_handshake: False where somebody else does the handshake and only registrations
                come here.
            others: Ranks that other frontends serve, but whose engines connect to us as well.
        """
        self.others = others
        self.steps = tuple(Step) if owns_handshake else (Step.REGISTRATION,)
        self.shared = False
        """Whether another process may have answered a HELLO: its engine just registers here."""

        self._progress = {rank: _Progress() for rank in ranks}
        self._changed = trio.Event()

    def __contains__(self, rank: object) -> bool:
        return rank in self._progress

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self._progress)

    def missing(self, step: Step) -> list[int]:
        """Return the ranks that have not done *step*."""
        return [rank for rank, progress in self._progress.items() if step not in progress.done]

    def inherit(self, rank: int, registration: Registration) -> None:
        """Note that *rank* has joined before our time, and how it had registered."""
        self._progress[rank] = _Progress(set(self.steps), registration)
        self._notify()

    def forget(self, rank: int) -> None:
        """Note that nothing is known of *rank* any more: it is awaited as at the first start."""
        self._progress[rank] = _Progress()
        self._notify()

    def unannounced(self, rank: int) -> bool:
        """Tell whether a registration of *rank* would be that of a process unknown so far.

        An engine registers once in its life. One that does so again, or without a HELLO, has
        said HELLO to another process of ours.
        """
        done = self._progress[rank].done
        return self.shared and (Step.HELLO not in done or Step.REGISTRATION in done)

    def expect(self, rank: int, now: float) -> None:
        """Note that a new process of *rank* was started; what its predecessor did is forgotten."""
        self._progress[rank] = _Progress(since=now)
        self._notify()

    def hello(self, rank: int, now: float) -> None:
        """Note a new process of *rank*; what its predecessor did is forgotten."""
        self._progress[rank] = _Progress({Step.HELLO}, since=now)
        self._notify()

    def ready(self, rank: int, now: float) -> Registration | None:
        """Note READY; return the registration if *rank* has joined by it.

        Raises:
            ProtocolError: The rank has not said HELLO.
        """
        progress = self._progress[rank]
        if Step.HELLO not in progress.done:
            raise ProtocolError(f"engine {rank} said READY before HELLO")
        if Step.READY in progress.done:
            return None
        return self._advance(progress, Step.READY, now)

    def register(self, rank: int, registration: Registration, now: float) -> Registration | None:
        """Note the registration; return it if *rank* has joined by it.

        Raises:
            ProtocolError: The rank has not said HELLO, where it should.
        """
        progress = self._progress[rank]
        if Step.HELLO in self.steps and Step.HELLO not in progress.done:
            raise ProtocolError(f"engine {rank} registered before HELLO")
        progress.registration = registration
        return self._advance(progress, Step.REGISTRATION, now)

    async def wait_change(self) -> None:
        """Return after the next step of any rank."""
        await self._changed.wait()

    def next_due(self, budget: float) -> float:
        """Return when a rank has spent *budget* seconds on a step."""
        awaited = (one.since for one in self._progress.values() if one.since is not None)
        return min(awaited, default=math.inf) + budget

    def take_overdue(self, now: float, budget: float) -> dict[int, Step]:
        """Return the ranks that have spent *budget* seconds on a step; they are told of once."""
        overdue: dict[int, Step] = {}
        for rank, progress in self._progress.items():
            if progress.since is not None and progress.since + budget <= now:
                progress.since = None
                overdue[rank] = next(step for step in self.steps if step not in progress.done)
        return overdue

    def _advance(self, progress: _Progress, step: Step, now: float) -> Registration | None:
        progress.done.add(step)
        joined = progress.done.issuperset(self.steps)
        progress.since = None if joined else now
        self._notify()
        return progress.registration if joined else None

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
