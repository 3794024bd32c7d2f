"""One pause window: a scope in which no engine generates, and nothing reaches one."""

from collections.abc import Callable

import attrs
import trio

from vllmfront.engine.pause._hold import Hold, HoldSnapshot, PauseMode
from vllmfront.engine.pause._lease import Lease
from vllmfront.engine.pause._phase import PauseEvent, PausePhase, next_pause_phase
from vllmfront.errors import StateConflict, VllmFrontError


@attrs.define(eq=False, kw_only=True)
class PauseWindow:
    """What ``EngineClient.pause`` opens; its owner may renew the lease and widen the mode."""

    hold: Hold
    """What the gate shows of it; replaced when its mode is widened."""

    lease: Lease
    phase: PausePhase = PausePhase.PAUSING
    error: VllmFrontError | None = None
    """Why it has ended, or goes on, against its owner's will: what an engine answered."""

    lapsed: bool = False
    """Whether its lease has run out and nobody has it now: the next who asks gets it."""

    _changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def mode(self) -> PauseMode:
        return self.hold.mode

    @property
    def owner(self) -> str | None:
        return self.hold.owner

    def enter(self, event: PauseEvent, error: VllmFrontError | None = None) -> None:
        """Change to the phase after *event*; *error* is what made it happen."""
        self.phase = next_pause_phase(self.phase, event)
        self.error = error
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait(self, predicate: Callable[[PausePhase], bool]) -> None:
        """Return once the phase satisfies *predicate*, which is asked at each change."""
        while not predicate(self.phase):
            await self._changed.wait()

    async def wait_paused(self) -> None:
        """Return once every engine that serves stands still; cancelled, the window stays.

        Raises:
            VllmFrontError: An engine refused, and the others go on; its answer.
            StateConflict: Somebody has ended the window meanwhile.
        """
        await self.wait(lambda phase: phase in {PausePhase.PAUSED, PausePhase.CLOSED})
        if self.phase is PausePhase.CLOSED:
            if self.error is not None:
                raise self.error.twin()
            raise StateConflict("The pause was ended before it was taken", state="running")

    def take_over(self, hold: Hold, lease: float | None, now: float) -> bool:
        """Give the window to who asks for it again with *hold*; return whether it is wider now.

        Raises:
            StateConflict: It is somebody else's, or the mode is narrower than the present one.
        """
        same = self.owner is not None and self.owner == hold.owner
        if self.phase is PausePhase.RESUMING or not (same or self.lapsed):
            raise self.conflict(now)
        if not hold.mode.covers(self.mode):
            if same:
                raise StateConflict(
                    f"The mode of a pause may only widen: it is {self.mode.value}, and cannot "
                    f"become {hold.mode.value}",
                    state=self.phase.value,
                    holder=self.owner,
                    since=self.hold.wall,
                )
            hold = attrs.evolve(hold, mode=self.mode)
        wider = hold.mode is not self.mode
        self.hold = attrs.evolve(hold, since=self.hold.since, wall=self.hold.wall)
        self.lapsed = False
        if same:
            self.lease.renew(now, lease)
        else:
            self.lease = Lease.of(lease, now)
        return wider

    def conflict(self, now: float) -> StateConflict:
        """Return why somebody else cannot have a window now."""
        holder = "someone who gave no name" if self.owner is None else self.owner
        return StateConflict(
            f"Generation is paused already (mode {self.mode.value}) by {holder}, for "
            f"{now - self.hold.since:.0f} seconds: wait until they resume, or pause as the same "
            "owner",
            state=self.phase.value,
            holder=self.owner,
            since=self.hold.wall,
        )

    def snapshot(self, now: float) -> HoldSnapshot:
        """Return how it stands."""
        return HoldSnapshot(
            kind=self.hold.kind,
            mode=self.mode,
            phase=self.phase.value,
            owner=self.owner,
            since=self.hold.since,
            lease_left=self.lease.left(now),
        )
