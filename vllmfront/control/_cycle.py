"""The whole of an update in one order: pause, new weights, resume; and how far it is."""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from vllmfront.control._plane import ControlPlane
from vllmfront.control._sync_state import SyncState
from vllmfront.engine.pause import Lease, PauseMode, PauseWindow
from vllmfront.errors import ControlCallFailed, StateConflict, VllmFrontError

_LOGGER = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class SyncPlan:
    """What is to be done."""

    chunks: Sequence[Any]
    """What ``/update_weights`` takes, one after the other."""

    init_info: Mapping[str, Any] | None = None
    """Connects the engines to the trainer first, where they are not."""

    draft: bool = False
    weight_version: str | None = None
    mode: PauseMode = PauseMode.ABORT
    clear_cache: bool = True
    owner: str | None = None
    lease: float | None = None


@attrs.frozen
class SyncEvent:
    """One step that was done, or the one that failed."""

    name: str
    fields: Mapping[str, Any]


class SyncCycle:
    """Runs a plan to its end: resumed, or failed with the state that it left.

    ``open`` pauses, ``run`` does the rest whoever listens.
    """

    def __init__(
        self, plane: ControlPlane, plan: SyncPlan, report: Callable[[SyncEvent], None]
    ) -> None:
        """Report each step to *report*, which must not raise."""
        self._plane = plane
        self._plan = plan
        self._report = report
        self._owner = plan.owner or f"sync-{secrets.token_hex(4)}"
        self._window: PauseWindow | None = None
        self._lease: float | None = None
        """Seconds of the pause that may be left in the end."""

        self._phase = "pause"
        self._mine = False
        """Whether the update under way is ours."""

        self._touched = False
        """Whether some of the new weights may have come, and not all."""

    def open(self) -> None:
        """Let nothing pass from now on; ``run`` is due.

        Raises:
            StateConflict: Somebody else has paused generation.
            EngineUnavailable: No engine has ever served, or none will.
        """
        plan = self._plan
        self._window = window = self._plane.client.pauses.open(
            plan.mode, clear_cache=plan.clear_cache, owner=self._owner
        )
        # We are here for as long as it takes: a lease begins once we have given up.
        window.lease, self._lease = Lease.of(None, 0.0), plan.lease or window.lease.seconds

    async def run(self) -> None:
        """Do it all; cancelled, it goes on to its end."""
        await self._plane.background.run(self._run)

    async def _run(self) -> None:
        plan = self._plan
        try:
            await self._plane.pause(plan.mode, clear_cache=plan.clear_cache, owner=self._owner)
            self._done("paused", mode=plan.mode.value, owner=self._owner)
            await self._update()
            self._phase = "resume"
            await self._plane.resume(self._owner)
        except VllmFrontError as error:
            await self._give_up(error)
        else:
            self._say("resumed", weight_version=plan.weight_version)

    async def _update(self) -> None:
        plan, weights = self._plan, self._plane.weights
        if plan.init_info is not None and weights.state is SyncState.UNINITIALIZED:
            self._phase = "init"
            await weights.init(plan.init_info)
            self._done("initialized")
        self._phase = "start"
        try:
            await weights.start(draft=plan.draft, owner=self._owner)
        except StateConflict:
            raise
        except VllmFrontError:
            self._mine = True
            raise
        self._mine = True
        self._done("started", draft=plan.draft)
        for number, chunk in enumerate(plan.chunks, 1):
            self._phase, self._touched = "update", True
            await weights.update(chunk, owner=self._owner)
            self._done("chunk", index=number, count=len(plan.chunks))
        self._phase = "finish"
        await weights.finish(plan.weight_version, owner=self._owner)
        self._touched = False
        self._done("finished", weight_version=plan.weight_version)

    def _done(self, name: str, **fields: Any) -> None:
        """Report a step, and go on if nobody has ended the pause meanwhile.

        Raises:
            StateConflict: Somebody has.
        """
        self._say(name, **fields)
        if not self._has_window:
            raise StateConflict("Somebody else has ended the pause", state="running")

    @property
    def _has_window(self) -> bool:
        return self._plane.client.pauses.window is self._window

    async def _give_up(self, error: VllmFrontError) -> None:
        """Let generation go on where the weights are as they were, and say what is left."""
        plane = self._plane
        failures = error.failures if isinstance(error, ControlCallFailed) else {}
        if not self._touched and self._has_window:
            try:
                if self._mine and plane.weights.incomplete:
                    await plane.weights.shutdown()
                await plane.resume(self._owner, force=not self._mine)
            except VllmFrontError as problem:
                _LOGGER.error("%s; generation stays paused after a failed update", problem)  # noqa: TRY400 - no bug of ours
        if self._has_window and self._lease is not None:
            plane.client.pauses.renew(self._owner, self._lease)
        self._say(
            "failed",
            phase=self._phase,
            state=plane.weights.state.value,
            paused=plane.client.pauses.window is not None,
            message=str(error),
            ranks={str(rank): text for rank, text in failures.items()},
        )

    def _say(self, name: str, **fields: Any) -> None:
        self._report(SyncEvent(name, fields))
