"""The pause windows of one client: who has one, what the engines are told, and how it ends."""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from vllmfront.engine.client.membership import EngineRank, EngineState, Membership
from vllmfront.engine.client.orders._lease_end import LeaseEnd, by_whom
from vllmfront.engine.client.orders._outcomes import failure_of
from vllmfront.engine.client.orders._standstill import Caught, Standstill
from vllmfront.engine.client.orders._utility import UtilityCalls
from vllmfront.engine.client.requests import Books, Dispatch
from vllmfront.engine.pause import (
    Hold,
    HoldGate,
    HoldKind,
    HoldSnapshot,
    Lease,
    LeaseAction,
    PauseEvent,
    PauseMode,
    PausePhase,
    PauseWindow,
    wall_of,
)
from vllmfront.errors import StateConflict

_LOGGER = logging.getLogger(__name__)

RESUME_SECONDS = 60.0
"""An engine answers between two of its steps."""


class Pauses:
    """At most one window at a time; ``serve`` is the task that owns it.

    Whoever asks for a window, or for its end, only waits for that: what was begun goes on when
    they are cancelled.
    """

    def __init__(
        self,
        gate: HoldGate,
        calls: UtilityCalls,
        membership: Membership,
        books: Books,
        dispatch: Dispatch,
        *,
        lease_action: LeaseAction,
    ) -> None:
        self.window: PauseWindow | None = None
        self.leases = LeaseEnd(lease_action)
        """What happens when the lease of a window runs out."""

        self.resume_seconds = RESUME_SECONDS
        """Until an engine that does not say that it goes on has refused to."""

        self._gate = gate
        self._calls = calls
        self._membership = membership
        self.standstill = Standstill(gate, calls, membership, books, dispatch)
        self._due: list[Callable[[], Awaitable[None]]] = []
        self._wake = trio.Event()
        self._taking = trio.CancelScope()
        self._left: tuple[PauseWindow | None, tuple[Hold, ...]] = (None, ())

    async def serve(self) -> None:
        """Do what windows need until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                due, self._due = self._due, []
                for action in due:
                    nursery.start_soon(action)
                with trio.move_on_at(self._next_expiry()):
                    await self._wake.wait()
                self._wake = trio.Event()
                self._look_at_lease(trio.current_time())

    def open(
        self,
        mode: PauseMode,
        *,
        clear_cache: bool = True,
        owner: str | None = None,
        lease: float | None = None,
    ) -> PauseWindow:
        """Let nothing pass from now on, and have the engines stand still; see ``PauseWindow``.

        The owner of the present window gets that one, in a mode that is as wide or wider, and with
        its lease begun anew.

        Raises:
            StateConflict: Somebody else has a window, or the mode is narrower than that of one's
                own.
            EngineUnavailable: No engine has ever served, or none will.
        """
        membership, now = self._membership, trio.current_time()
        if membership.state.value in {EngineState.LOADING, EngineState.FAILED}:
            raise membership.unavailable()
        hold = Hold(
            kind=HoldKind.PAUSE,
            mode=mode,
            since=now,
            wall=wall_of(now),
            owner=owner,
            clear_cache=clear_cache,
        )
        window = self.window
        if window is not None:
            return self._join(window, hold, lease, now)
        self.window = window = PauseWindow(hold=hold, lease=Lease.of(lease, now))
        _LOGGER.info("Generation is being paused%s, mode %s", by_whom(owner), mode.value)
        self._take(window)
        return window

    def renew(self, owner: str | None, lease: float | None = None) -> PauseWindow:
        """Begin the lease of *owner* anew, for other seconds where they are given.

        One that has run out, and that nobody else has taken since, is theirs again.

        Raises:
            StateConflict: They have no window.
        """
        window = self.window
        if window is None:
            raise StateConflict(
                "There is no pause to renew: it has ended, or its lease has run out",
                state="running",
            )
        if window.owner != owner:
            raise window.conflict(trio.current_time())
        window.lapsed = False
        window.lease.renew(trio.current_time(), lease)
        self._gate.close(window.hold)  # who keeps it for another process learns of the lease
        self._wake.set()
        return window

    def end(self, owner: str | None = None, *, force: bool = False) -> PauseWindow | None:
        """Have the engines go on; return the window, which then ends, or None: there was none.

        Raises:
            StateConflict: It is somebody else's, and *force* is not given.
        """
        window = self.window
        if window is None:
            return None
        if not force:
            self.check_owner(owner)
        self._taking.cancel(reason="the pause ends")
        window.enter(PauseEvent.RESUME)
        self._do(partial(self._lift, window))
        return window

    def check_owner(self, owner: str | None) -> None:
        """Do nothing where *owner* may end the window, or there is none.

        Raises:
            StateConflict: It is somebody else's.
        """
        window = self.window
        if window is not None and window.owner != owner and not window.lapsed:
            raise window.conflict(trio.current_time())

    def require(self, owner: str) -> None:
        """Do nothing while *owner* has a window in which everything stands still.

        Raises:
            StateConflict: They have none any more, or not yet.
        """
        window = self.window
        if window is not None and window.owner != owner:
            raise window.conflict(trio.current_time())
        if window is None or window.phase is not PausePhase.PAUSED:
            state = "running" if window is None else window.phase.value
            raise StateConflict(
                f"There is no pause by {owner} in force: it was not taken, has ended, or its lease "
                "has run out; pause again first",
                state=state,
            )

    def snapshots(self) -> tuple[HoldSnapshot, ...]:
        """Return what holds generation back, of any kind."""
        now, window = trio.current_time(), self.window
        own = () if window is None else (window.snapshot(now),)
        others = (one for one in self._gate.holds if one.kind is not HoldKind.PAUSE)
        return (*own, *(one.snapshot() for one in others))

    # Being passed on to another process

    def relinquish(self) -> None:
        """Leave all holds to another process, which has them now: engines stay as they are.

        What queued here goes to the engines, which keep it as long as they are held.
        """
        self._left = (self.window, self._gate.holds)
        self.window = None
        for hold in self._gate.holds:
            self._gate.open(hold.kind)

    def take_back(self) -> None:
        """Have again what was relinquished: the other process did not come to serve."""
        (window, holds), self._left = self._left, (None, ())
        for hold in holds:
            self._gate.close(hold)
        self.window = window
        self._wake.set()

    def adopt(
        self, holds: Sequence[Hold], lease: Lease, *, lapsed: bool, certain: bool = True
    ) -> None:
        """Go on with the holds of another process; engines are held already, if that is *certain*.

        Else they are told as they join.
        """
        for hold in holds:
            if hold.kind is HoldKind.PAUSE:
                self.window = PauseWindow(hold=hold, lease=lease, lapsed=lapsed)
                self.window.enter(PauseEvent.STANDING)
            self._gate.close(hold)
        ranks = self._membership.ranks.values()
        if certain:
            self.standstill.setup.note(ranks)
        else:
            self.standstill.setup.note_unsure(ranks)
        self._wake.set()

    # Taking

    def _join(
        self, window: PauseWindow, hold: Hold, lease: float | None, now: float
    ) -> PauseWindow:
        """Return *window* to who asks for it again with *hold*."""
        wider = window.take_over(hold, lease, now)
        if wider or window.phase is PausePhase.PAUSING:
            # Also where only the answer of an engine is missing: it may have been lost.
            window.enter(PauseEvent.WIDENED)
            self._take(window)
        else:
            self._gate.close(window.hold)
            self._wake.set()
        return window

    def _take(self, window: PauseWindow) -> None:
        """Close the gate, and have the engines told."""
        caught = self.standstill.hold(window.hold)
        self._taking.cancel(reason="asked again")
        self._taking = trio.CancelScope()
        self._do(partial(self._tell, window, window.hold, self._taking, caught))

    async def _tell(
        self,
        window: PauseWindow,
        hold: Hold,
        scope: trio.CancelScope,
        caught: Caught,
    ) -> None:
        with scope:
            ranks = self.standstill.serving()
            outcomes = await self.standstill.setup.order(hold, ranks)
            if window.hold.mode is not hold.mode or window.phase is not PausePhase.PAUSING:
                return
            refused = failure_of("pause", outcomes)
            if refused is None:
                window.enter(PauseEvent.STANDING)
                _LOGGER.info(
                    "Generation stands still%s, mode %s", by_whom(window.owner), hold.mode.value
                )
            else:
                _LOGGER.error("%s; the others go on", refused)
                window.enter(PauseEvent.REFUSED, refused)
                self._do(partial(self._lift, window))
                return
            if hold.mode is PauseMode.ABORT:
                await self.standstill.end_aborted(caught)

    # Lifting

    async def _lift(self, window: PauseWindow) -> None:
        cause = window.error
        lifted: dict[EngineRank, int] = {}
        # Engines that were set up meanwhile stand still as well.
        while ranks := [
            one for one in self.standstill.serving() if lifted.get(one) != one.incarnation
        ]:
            lifted |= {one: one.incarnation for one in ranks}
            if self._gate.find(HoldKind.SLEEP) is not None:
                break  # one that sleeps goes on by itself once it has been woken up
            outcomes = await self._calls.call_ranks_each(
                ranks, "resume_scheduler", (), self.resume_seconds, wait_for_all=True
            )
            if self.window is not window or window.phase is not PausePhase.RESUMING:
                return
            refused = failure_of("resume", outcomes)
            if refused is not None:
                _LOGGER.error("%s; generation stays paused", refused)
                window.enter(PauseEvent.REFUSED, refused)
                return
        self.window = None
        self._gate.open(HoldKind.PAUSE)
        self.standstill.setup.note(
            [one for one, process in lifted.items() if one.incarnation == process]
        )
        window.enter(PauseEvent.RESUMED, cause)
        seconds = trio.current_time() - window.hold.since
        _LOGGER.info(
            "Generation goes on, after a pause%s of %.1f s", by_whom(window.owner), seconds
        )

    # Leases

    def _next_expiry(self) -> float:
        window = self.window
        if window is None or window.phase is PausePhase.RESUMING:
            return math.inf
        return window.lease.due

    def _look_at_lease(self, now: float) -> None:
        window = self.window
        if window is None or window.lease.due > now or window.phase is PausePhase.RESUMING:
            return
        if self.leases.lapse(window, now):
            self.end(force=True)

    def _do(self, action: Callable[[], Awaitable[None]]) -> None:
        self._due.append(action)
        self._wake.set()
