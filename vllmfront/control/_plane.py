"""All that changes the engines' state, behind one object."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from vllmfront.control._background import Background
from vllmfront.control._calls import ControlCalls
from vllmfront.control._handover import (
    ControlLegacy,
    decode_control,
    encode_control,
    pause_obstacle,
)
from vllmfront.control._operations import SLEEP_OPERATIONS, OperationTimes
from vllmfront.control._profiling import Profiling
from vllmfront.control._weights import WeightSync
from vllmfront.engine import EngineClient
from vllmfront.engine.pause import HoldKind, Lease, PauseMode, PausePhase, PauseWindow
from vllmfront.errors import ControlCallTimeout, StateConflict

_LOGGER = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class ControlConfig:
    """How orders are given."""

    timeout: float = 300.0
    """Seconds until one that is not answered is given up."""

    guarded: bool = True
    """Whether weights are updated in order alone; see ``_sync_state``."""


@asynccontextmanager
async def open_control_plane(
    client: EngineClient, config: ControlConfig | None = None
) -> AsyncGenerator["ControlPlane"]:
    """Give orders to the engines of *client* for as long as the block runs."""
    plane = ControlPlane(client, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(plane.serve)
        yield plane
        nursery.cancel_scope.cancel(reason="the control plane was closed")


class ControlPlane:
    """Pauses, orders and new weights of the engines of one client; ``serve`` owns the work."""

    def __init__(self, client: EngineClient, config: ControlConfig | None = None) -> None:
        self.config = config = ControlConfig() if config is None else config
        self.client = client
        self.background = Background()
        self.calls = ControlCalls(client, timeout=config.timeout)
        self.weights = WeightSync(client, self.calls, self.background, guarded=config.guarded)
        self.sleep_times = OperationTimes(SLEEP_OPERATIONS)
        self.profiling = Profiling(client, self.calls, self.background)
        client.pauses.leases.veto = self._why_not_resume
        client.pauses.resume_seconds = config.timeout

    async def serve(  # noqa: ASYNC128 (the background calls it)
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Do the work until cancelled."""
        await self.background.serve(task_status=task_status)

    # Being passed on to another process

    def obstacle(self) -> str | None:
        """Return why this cannot be passed on just now; None where it can."""
        if self.background.busy:
            return "an order to the engines is being done; try again when it is"
        return pause_obstacle(self.client.pauses.window)

    def legacy(self) -> ControlLegacy:
        """Return what the next process has to know."""
        window = self.client.pauses.window
        lease = Lease.of(None, 0.0) if window is None else window.lease
        return ControlLegacy(
            holds=self.client.gate.holds,
            lease_seconds=lease.seconds,
            lease_left=lease.left(trio.current_time()),
            lapsed=window is not None and window.lapsed,
            weights=self.weights.legacy(),
        )

    def relinquish(self) -> None:
        """Leave everything to the next process: orders that still come here are refused."""
        self.background.closed = (
            "Another process of this server has taken over: connect anew, and try again."
        )
        self.client.pauses.relinquish()

    def take_back(self) -> None:
        """Go on: the next process did not come to serve. Nothing where nothing was left to it."""
        if self.background.closed is not None:
            self.background.closed = None
            self.client.pauses.take_back()

    def adopt(self, legacy: ControlLegacy, *, certain: bool = True) -> None:
        """Go on where the process before has left off.

        Args:
            legacy: What it knew.
            certain: Whether its engines are still there, and as it knew them.
        """
        now = trio.current_time()
        lease = Lease(legacy.lease_seconds)
        if legacy.lease_left is not None:
            lease.due = now + legacy.lease_left
        self.client.pauses.adopt(legacy.holds, lease, lapsed=legacy.lapsed, certain=certain)
        if legacy.weights is not None:
            self.weights.adopt(legacy.weights, certain=certain)

    def adopt_saved(self) -> None:
        """Go on where a process has left off that has ended, if it has left anything in a file."""
        recorder = self.client.recorder
        if recorder is None or recorder.kept is None:
            return
        try:
            legacy = decode_control(recorder.kept)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _LOGGER.warning("What an earlier frontend knew of pauses makes no sense: %s", error)
            return
        for hold in legacy.holds:
            _LOGGER.warning(
                "An earlier frontend has left generation %s, mode %s%s: it stays so",
                hold.kind.value,
                hold.mode.value,
                "" if hold.owner is None else f", by {hold.owner}",
            )
        self.adopt(legacy, certain=False)

    def record(self) -> None:
        """Keep what the next process has to know in the file where engines are, if there is one."""
        recorder = self.client.recorder
        if recorder is None:
            return
        self.client.gate.on_change(recorder.note)
        self.weights.on_change = recorder.note
        recorder.keep(lambda: encode_control(self.legacy()))

    # Orders

    async def pause(
        self,
        mode: PauseMode,
        *,
        clear_cache: bool = True,
        owner: str | None = None,
        lease: float | None = None,
    ) -> PauseWindow:
        """Open a window, which stays; return once all engines stand still.

        Cancelled, or out of time, the pause is taken all the same: who asks again as the same owner
        waits for it again.

        Raises:
            StateConflict: Generation is paused already, by somebody else.
            ControlCallTimeout: It was not taken in time.
            ControlCallFailed: An engine refused, and the others go on.
            EngineUnavailable: No engine has ever served, or none will.
        """
        self.background.check_open()
        window = self.client.pauses.open(mode, clear_cache=clear_cache, owner=owner, lease=lease)
        with trio.move_on_after(self.config.timeout):
            await window.wait_paused()
            return window
        raise ControlCallTimeout(
            f"pause timed out: the engines do not all stand still after {self.config.timeout:g} "
            f"seconds (mode {mode.value}). No new request passes; POST /resume takes it back",
            phase="pause",
            failures={},
        )

    async def resume(self, owner: str | None = None, *, force: bool = False) -> None:
        """End the window, and return once all engines go on; without one they are told to as well.

        Raises:
            StateConflict: It is somebody else's, or weights are incomplete; not with *force*.
            ControlCallTimeout: They do not all go on in time.
            ControlCallFailed: An engine refused; the window stays.
        """
        self.background.check_open()
        pauses = self.client.pauses
        if not force:
            pauses.check_owner(owner)
        why_not = self._why_not_resume()
        if pauses.window is not None and why_not is not None and not force:
            raise StateConflict(
                f"Generation stays paused: {why_not}. Finish an update, or POST /resume?force=true",
                state=self.weights.state.value,
            )
        window = pauses.end(owner, force=force)
        if window is None:
            # Another frontend before us may have paused them.
            if self.client.gate.find(HoldKind.SLEEP) is None:
                await self.background.run(partial(self.calls.order, "resume", "resume_scheduler"))
            return
        with trio.move_on_after(self.config.timeout):
            await window.wait(lambda phase: phase is not PausePhase.RESUMING)
            if window.phase is not PausePhase.CLOSED and window.error is not None:
                raise window.error.twin()
            return
        raise ControlCallTimeout(
            f"resume timed out: the engines do not all go on after {self.config.timeout:g} "
            "seconds; try again",
            phase="resume",
            failures={},
        )

    async def is_paused(self) -> bool:
        """Tell whether generation is held back, by us or by whoever told the engines."""
        if self.client.gate.closed:
            return True
        return any(await self.calls.order("is_paused", "is_scheduler_paused"))

    async def sleep(self, level: int, mode: PauseMode, *, owner: str | None = None) -> None:
        """Let no request pass, and send all engines to sleep; cancelled, it is done all the same.

        Raises:
            ControlCallFailed: An engine refused, and all are awake, or as asleep as before.
            ControlCallTimeout: They do not all sleep in time; no request passes.
            EngineUnavailable: No engine has ever served, or none will.
        """
        fall_asleep = partial(
            self.client.sleeping.fall_asleep, level, mode, owner=owner, seconds=self.config.timeout
        )
        with self.sleep_times.record("sleep"):
            await self.background.run(fall_asleep)

    async def wake_up(self, tags: Sequence[str] | None, *, force: bool = False) -> bool:
        """Wake all engines up, or some parts of them; return whether nothing sleeps any more.

        Raises:
            StateConflict: Generation would go on, and weights are incomplete; not with *force*.
            ControlCallFailed: An engine refused.
            ControlCallTimeout: An engine did not answer in time.
            EngineUnavailable: No engine serves.
        """
        hold, why_not = self.client.sleeping.hold, self._why_not_resume()
        alone = hold is not None and self.client.pauses.window is None
        all_of_it = not tags or hold is None or hold.asleep <= set(tags)
        if alone and all_of_it and why_not is not None and not force:
            raise StateConflict(
                f"Generation stays asleep: {why_not}. Wake up the weights alone and finish an "
                "update, or POST /wake_up?force=true",
                state=self.weights.state.value,
            )
        seconds = self.config.timeout
        with self.sleep_times.record("wake"):
            return await self.background.run(
                partial(self.client.sleeping.wake_up, tags, seconds=seconds)
            )

    async def release_kv_cache(self) -> None:
        """Let the engines, which stand still, let go of their caches until they are woken up.

        Raises:
            StateConflict: They do not stand still, or something sleeps already.
            VllmFrontError: As ``sleep``.
        """
        seconds = self.config.timeout
        with self.sleep_times.record("release_kv_cache_memory"):
            await self.background.run(
                partial(self.client.sleeping.release_kv_cache, seconds=seconds)
            )

    async def is_sleeping(self) -> bool:
        """Tell whether engines sleep, by us or by whoever told them; a pause counts, as in vLLM."""
        if self.client.sleeping.hold is not None:
            return True
        return any(await self.calls.order("is_sleeping", "is_sleeping"))

    def abort(self, request_ids: Sequence[str] | None) -> int:
        """End these requests, or all of them for None or none; return how many there were."""
        if request_ids:
            return self.client.abort(request_ids)
        return self.client.abort_all()

    def _why_not_resume(self) -> str | None:
        incomplete = self.weights.incomplete
        if not self.config.guarded or not incomplete:
            return None
        ranks = ", ".join(map(str, incomplete))
        return f"the weights of engine {ranks} are incomplete, as no update of them was finished"
