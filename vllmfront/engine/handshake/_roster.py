"""Which of the expected engines has come how far.

An engine says HELLO, gets its addresses, loads for minutes, registers on the input socket and
says READY. The last two travel over different sockets, so either may be seen first; with both it
has joined. A HELLO from a rank that was there before is a new process: it starts anew.
"""

import enum
from collections.abc import Sequence

import attrs
import trio

from vllmfront.engine.wire import Registration
from vllmfront.errors import ProtocolError, StartupFailed


class Step(enum.Enum):
    """What an engine does to join, under the name that operators see."""

    HELLO = "HELLO"
    READY = "READY"
    REGISTRATION = "registration"


@attrs.define
class _Progress:
    done: set[Step] = attrs.field(factory=set)
    registration: Registration | None = None


class Roster:
    """The expected ranks and the steps that each has done."""

    def __init__(self, ranks: Sequence[int], *, owns_handshake: bool = True) -> None:
        """Expect *ranks*.

        Args:
            ranks: Global data-parallel ranks, 0 to 65535.
            owns_handshake: False where somebody else does the handshake and only registrations
                come here.
        """
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

    def unannounced(self, rank: int) -> bool:
        """Tell whether a registration of *rank* would be that of a process unknown so far.

        An engine registers once in its life. One that does so again, or without a HELLO, has
        said HELLO to another process of ours.
        """
        done = self._progress[rank].done
        return self.shared and (Step.HELLO not in done or Step.REGISTRATION in done)

    def hello(self, rank: int) -> None:
        """Note a new process of *rank*; what its predecessor did is forgotten."""
        self._progress[rank] = _Progress({Step.HELLO})
        self._notify()

    def ready(self, rank: int) -> Registration | None:
        """Note READY; return the registration if *rank* has joined by it.

        Raises:
            ProtocolError: The rank has not said HELLO.
        """
        progress = self._progress[rank]
        if Step.HELLO not in progress.done:
            raise ProtocolError(f"engine {rank} said READY before HELLO")
        if Step.READY in progress.done:
            return None
        return self._advance(progress, Step.READY)

    def register(self, rank: int, registration: Registration) -> Registration | None:
        """Note the registration; return it if *rank* has joined by it.

        Raises:
            ProtocolError: The rank has not said HELLO, where it should.
        """
        progress = self._progress[rank]
        if Step.HELLO in self.steps and Step.HELLO not in progress.done:
            raise ProtocolError(f"engine {rank} registered before HELLO")
        progress.registration = registration
        return self._advance(progress, Step.REGISTRATION)

    async def wait_complete(self, step: Step) -> None:
        """Return once every rank has done *step*."""
        while self.missing(step):
            await self._changed.wait()

    def _advance(self, progress: _Progress, step: Step) -> Registration | None:
        progress.done.add(step)
        self._notify()
        return progress.registration if progress.done.issuperset(self.steps) else None

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


async def watch_start_up(roster: Roster, ready_timeout: float) -> None:
    """Return once all ranks have joined for the first time.

    Raises:
        StartupFailed: A step was not done by all within *ready_timeout* seconds.
    """
    for step in roster.steps:
        with trio.move_on_after(ready_timeout):
            await roster.wait_complete(step)
        missing = roster.missing(step)
        if missing:
            ranks = ", ".join(map(str, missing))
            raise StartupFailed(
                f"no {step.value} from engine {ranks} within {ready_timeout:g} seconds; "
                "look at the engine's log, or raise --engine-ready-timeout-secs"
            )
