"""The pause windows of one client: who has one, what the engines are told, and how it ends."""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from vllmfront.engine.client.membership import EngineRank, EngineState, Membership, RankState
from vllmfront.engine.client.orders._hold_setup import HoldSetup
from vllmfront.engine.client.orders._utility import Outcome, UtilityCalls
from vllmfront.engine.client.requests import Books, Child, Dispatch
from vllmfront.engine.metrics import TerminalCause
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
from vllmfront.errors import (
    ControlCallFailed,
    ControlCallTimeout,
    StateConflict,
    UtilityCallFailed,
    UtilityCallTimeout,
)

_LOGGER = logging.getLogger(__name__)

ABORT_GRACE = 0.25
"""Seconds from an engine's word that it has aborted everything until what it forgot ends here."""


RESUME_SECONDS = 60.0
"""An engine answers between two of its steps."""

Caught = Sequence[tuple[str, Child]]
"""What was in flight at a moment, by the ids that it had."""


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
        self.veto: Callable[[], str | None] = lambda: None
        """Asked whether generation must not go on although the lease of a window has run out;
        returns why."""

        self.resume_seconds = RESUME_SECONDS
        """Until an engine that does not say that it goes on has refused to."""

        self.on_shutdown: Callable[[str], None] | None = None
        """Called with the reason where a lapsed lease is to end the program."""

        self._gate = gate
        self._calls = calls
        self._membership = membership
        self._books = books
        self._dispatch = dispatch
        self._lease_action = lease_action
        self.setup = HoldSetup(gate, calls, membership)
        """Tells engines of holds of any kind."""

        self._due: list[Callable[[], Awaitable[None]]] = []
        self._wake = trio.Event()
        self._taking = trio.CancelScope()
        self._left: tuple[PauseWindow | None, tuple[Hold, ...]] = (None, ())
        membership.setups.append(self.setup)
        gate.on_change(self._note_gate)

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
        _LOGGER.info("Generation is being paused%s, mode %s", _by(owner), mode.value)
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
        return (
            *own,
            *(
                HoldSnapshot(
                    kind=hold.kind,
                    mode=hold.mode,
                    phase=hold.kind.value,
                    owner=hold.owner,
                    since=hold.since,
                )
                for hold in self._gate.holds
                if hold.kind is not HoldKind.PAUSE
            ),
        )

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
            self.setup.note(ranks)
        else:
            self.setup.note_unsure(ranks)
        self._wake.set()

    # Taking

    def _join(
        self, window: PauseWindow, hold: Hold, lease: float | None, now: float
    ) -> PauseWindow:
        """Return *window* to who asks for it again with *hold*."""
        same = window.owner is not None and window.owner == hold.owner
        if window.phase is PausePhase.RESUMING or not (same or window.lapsed):
            raise window.conflict(now)
        if not hold.mode.covers(window.mode):
            if same:
                raise StateConflict(
                    f"The mode of a pause may only widen: it is {window.mode.value}, and cannot "
                    f"become {hold.mode.value}",
                    state=window.phase.value,
                    holder=window.owner,
                    since=window.hold.wall,
                )
            hold = attrs.evolve(hold, mode=window.mode)
        wider = hold.mode is not window.mode
        window.hold = attrs.evolve(hold, since=window.hold.since, wall=window.hold.wall)
        window.lapsed = False
        if same:
            window.lease.renew(now, lease)
        else:
            window.lease = Lease.of(lease, now)
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
        caught = self.hold(window.hold)
        self._taking.cancel(reason="asked again")
        self._taking = trio.CancelScope()
        self._do(partial(self._tell, window, window.hold, self._taking, caught))

    def hold(self, hold: Hold) -> Caught:
        """Let nothing pass from now on; return what runs on engines, which are still to be told."""
        self._dispatch.send_posted()  # they were let in before
        self._gate.close(hold)
        caught = list(self._books.children.items())
        if hold.mode is PauseMode.ABORT:
            for child in list(self._books.room):
                self._books.finish_aborted(child, TerminalCause.ENGINE_ABORTED)
        return caught

    async def end_aborted(self, caught: Caught) -> None:
        """End those of *caught* that engines have aborted without a word about it."""
        if not caught:
            return
        await trio.sleep(ABORT_GRACE)
        for child in self._books.still_running(caught):
            _LOGGER.warning("An engine did not say that it has aborted %r", child)
            self._books.finish_aborted(child, TerminalCause.ENGINE_ABORTED)

    async def _tell(
        self,
        window: PauseWindow,
        hold: Hold,
        scope: trio.CancelScope,
        caught: Caught,
    ) -> None:
        with scope:
            ranks = self.serving()
            outcomes = await self.setup.order(hold, ranks)
            if window.hold.mode is not hold.mode or window.phase is not PausePhase.PAUSING:
                return
            refused = _refused("pause", outcomes)
            if refused is None:
                window.enter(PauseEvent.STANDING)
                _LOGGER.info(
                    "Generation stands still%s, mode %s", _by(window.owner), hold.mode.value
                )
            else:
                _LOGGER.error("%s; the others go on", refused)
                window.enter(PauseEvent.REFUSED, refused)
                self._do(partial(self._lift, window))
                return
            if hold.mode is PauseMode.ABORT:
                await self.end_aborted(caught)

    # Lifting

    async def _lift(self, window: PauseWindow) -> None:
        cause = window.error
        lifted: dict[EngineRank, int] = {}
        # Engines that were set up meanwhile stand still as well.
        while ranks := [one for one in self.serving() if lifted.get(one) != one.incarnation]:
            lifted |= {one: one.incarnation for one in ranks}
            if self._gate.find(HoldKind.SLEEP) is not None:
                break  # one that sleeps goes on by itself once it has been woken up
            outcomes = await self._calls.call_ranks_each(
                ranks, "resume_scheduler", (), self.resume_seconds, wait_for_all=True
            )
            if self.window is not window or window.phase is not PausePhase.RESUMING:
                return
            refused = _refused("resume", outcomes) or _silent("resume", outcomes)
            if refused is not None:
                _LOGGER.error("%s; generation stays paused", refused)
                window.enter(PauseEvent.REFUSED, refused)
                return
        self.window = None
        self._gate.open(HoldKind.PAUSE)
        self.setup.note([one for one, process in lifted.items() if one.incarnation == process])
        window.enter(PauseEvent.RESUMED, cause)
        seconds = trio.current_time() - window.hold.since
        _LOGGER.info("Generation goes on, after a pause%s of %.1f s", _by(window.owner), seconds)

    def serving(self) -> list[EngineRank]:
        """Return the engines that may generate; others are told when they join."""
        ranks = self._membership.ranks.values()
        return [one for one in ranks if one.state.connected and one.state is not _PREPARING]

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
        window.lease.end()
        window.lapsed = True
        action, veto = self._lease_action, self.veto()
        story = (
            f"The pause{_by(window.owner)}, mode {window.mode.value}, has lasted "
            f"{now - window.hold.since:.0f} s, and its lease was not renewed"
        )
        if action is LeaseAction.SHUTDOWN and self.on_shutdown is not None:
            _LOGGER.error("%s: ending the program, as --pause-lease-action says", story)
            self.on_shutdown("the lease of a pause was not renewed")
        elif action is LeaseAction.RESUME and veto is None:
            _LOGGER.error("%s: generation goes on, as --pause-lease-action says", story)
            self.end(force=True)
        else:
            why, end = "as --pause-lease-action says", "POST /resume ends that"
            if veto is not None:
                why = veto
                end = "POST /shutdown_weight_transfer_engine gives the update up, then POST /resume"
            _LOGGER.error("%s: it stays paused, %s; %s", story, why, end)

    def _note_gate(self) -> None:
        if self._gate.closed:
            self._books.room.hold()
        else:
            self._books.room.release(trio.current_time())

    def _do(self, action: Callable[[], Awaitable[None]]) -> None:
        self._due.append(action)
        self._wake.set()


_PREPARING = RankState.PREPARING


def _by(owner: str | None) -> str:
    return "" if owner is None else f" by {owner}"


def _refused(phase: str, outcomes: Sequence[Outcome]) -> ControlCallFailed | None:
    """Return what to say where an engine refused; one that is gone has nothing to refuse."""
    failures = {
        outcome.rank: str(outcome.error)
        for outcome in outcomes
        if isinstance(outcome.error, UtilityCallFailed)
    }
    if not failures:
        return None
    listed = "; ".join(f"engine {rank}: {text}" for rank, text in failures.items())
    return ControlCallFailed(f"{phase} was refused by {listed}", phase=phase, failures=failures)


def _silent(phase: str, outcomes: Sequence[Outcome]) -> ControlCallTimeout | None:
    """Return what to say where an engine gave no answer in time."""
    failures = {
        outcome.rank: str(outcome.error)
        for outcome in outcomes
        if isinstance(outcome.error, UtilityCallTimeout)
    }
    if not failures:
        return None
    listed = "; ".join(f"engine {rank}: {text}" for rank, text in failures.items())
    return ControlCallTimeout(f"{phase} timed out: {listed}", phase=phase, failures=failures)
