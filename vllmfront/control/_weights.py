"""New weights for the engines: each order at its time, and what is known of those they have."""

import copy
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import trio

from vllmfront.control._background import Background
from vllmfront.control._calls import ControlCalls
from vllmfront.control._engine_weights import EngineWeights
from vllmfront.control._handover import WeightLegacy
from vllmfront.control._operations import WEIGHT_OPERATIONS, OperationTimes
from vllmfront.control._sync_state import SyncOrder, SyncState, next_sync_state
from vllmfront.control._weight_ledger import WeightLedger
from vllmfront.control._weight_report import SyncFailure, WeightSnapshot, WeightVersion
from vllmfront.engine import EngineClient
from vllmfront.engine.pause import HoldKind
from vllmfront.errors import (
    ControlCallFailed,
    ControlCallTimeout,
    EngineDied,
    EngineUnavailable,
    StateConflict,
    VllmFrontError,
)

_LOGGER = logging.getLogger(__name__)


class WeightSync:
    """One order after the other; who comes meanwhile waits for its turn."""

    def __init__(
        self, client: EngineClient, calls: ControlCalls, background: Background, *, guarded: bool
    ) -> None:
        self.times = OperationTimes(WEIGHT_OPERATIONS)
        self._client = client
        self._calls = calls
        self._engines = EngineWeights(client, calls)
        self._background = background
        self._guarded = guarded
        self._state = SyncState.UNINITIALIZED
        self._since = trio.current_time()
        self._ledger = WeightLedger()
        self._failure: SyncFailure | None = None
        self._turn = trio.Lock()
        self._busy: SyncOrder | None = None
        self._broken: SyncFailure | None = None
        """An engine that was lost while the present order was done, maybe after it had answered."""

        self._unseen = set[int]()
        """Ranks of which another process told us, and that have not joined since."""

        self.on_change: Callable[[], None] = lambda: None
        """Called when what the next process has to know has changed."""

        client.on_loss(self._note_loss)

    @property
    def state(self) -> SyncState:
        return self._state

    @property
    def busy(self) -> SyncOrder | None:
        """What is being done just now."""
        return self._busy

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Ranks that must not serve: their last update was broken off, or is under way."""
        return self._ledger.incomplete

    def snapshot(self) -> WeightSnapshot:
        """Return how it stands."""
        return WeightSnapshot(
            state=self._state,
            since=self._since,
            draft=self._ledger.draft,
            chunks=self._ledger.chunks,
            expected=self._ledger.expected,
            stale=tuple(sorted(self._ledger.stale)),
            incomplete=self.incomplete,
            failure=self._failure,
        )

    def legacy(self) -> WeightLegacy:
        """Return what the next process has to know."""
        # Whoever takes over in the middle of an order will not learn what came of it.
        state = self._state if self._busy is None else SyncState.FAILED
        return WeightLegacy(state=state, ledger=copy.deepcopy(self._ledger))

    def adopt(self, legacy: WeightLegacy, *, certain: bool = True) -> None:
        """Go on where another process has left off, with the same engines if that is *certain*."""
        self._enter(legacy.state)
        self._ledger = legacy.ledger
        if not certain:
            self._unseen = set(self._client.ranks)
            self._client.on_change(self._look_for_unseen)

    # Orders. Each raises StateConflict where it is not its time, ControlCallFailed naming ranks,
    # ControlCallTimeout, or EngineUnavailable. Cancelled, it is done all the same.

    async def init(self, init_info: Mapping[str, Any]) -> None:
        """Connect the engines to a trainer."""
        await self._do(SyncOrder.INIT, {"init_info": dict(init_info)})

    # An *owner* is one whose pause has to be in force when the order's turn comes: one that has
    # lost it, unknown to them, would empty layers of engines that generate.

    async def start(self, *, draft: bool = False, owner: str | None = None) -> None:
        """Begin an update of the model, or of its draft model."""
        await self._do(SyncOrder.START_DRAFT if draft else SyncOrder.START, {}, owner)

    async def update(self, update_info: Any, *, owner: str | None = None) -> None:
        """Load some weights: an object for all workers, or a list with one for each."""
        await self._do(SyncOrder.UPDATE, {"update_info": update_info}, owner)

    async def finish(self, weight_version: str | None = None, *, owner: str | None = None) -> None:
        """End the update; the weights are called *weight_version* from now on."""
        await self._background.run(partial(self._finish, weight_version, owner))

    async def shutdown(self) -> None:
        """Disconnect the engines, giving up an update that is under way."""
        await self._background.run(partial(self._order, SyncOrder.SHUTDOWN, self._disconnect))

    async def set_version(self, label: str) -> None:
        """Call the present weights *label*."""
        deadline = trio.current_time() + self._calls.timeout
        await self._background.run(partial(self._set_version, label, deadline))

    async def version(self) -> WeightVersion:
        """Return what the engines call their weights.

        Raises:
            StateConflict: They do not agree.
        """
        labels = await self._calls.order("weight_info", "get_weight_version")
        if len(set(labels)) > 1:
            listed = ", ".join(f"engine {rank}: {label}" for rank, label in enumerate(labels))
            raise StateConflict(
                f"The engines have different weights: {listed}; update them together",
                state=self._state.value,
            )
        return WeightVersion(
            label=labels[0],
            expected=self._ledger.expected,
            stale=tuple(sorted(self._ledger.stale)),
            incomplete=self.incomplete,
        )

    async def _do(
        self, order: SyncOrder, kwargs: Mapping[str, Any], owner: str | None = None
    ) -> None:
        await self._background.run(
            partial(self._order, order, partial(self._engines.pass_on, order, kwargs), owner)
        )

    async def _finish(self, weight_version: str | None, owner: str | None) -> None:
        async def work(deadline: float) -> None:
            await self._engines.pass_on(SyncOrder.FINISH, {}, deadline)
            # Part of the order: weights that did not get their name would go by the old one's.
            if weight_version is not None:
                await self._set_version(weight_version, deadline)
            if not self._ledger.draft:
                await self._engines.load_adapters(deadline)

        await self._order(SyncOrder.FINISH, work, owner)

    async def _set_version(self, label: str, deadline: float) -> None:
        await self._engines.name(label, deadline)
        self._ledger.name(label)
        self.on_change()

    async def _order(
        self,
        order: SyncOrder,
        work: Callable[[float], Awaitable[object]],
        owner: str | None = None,
    ) -> None:
        """Do *work* when it is our turn, and its time; it gets the deadline of all that."""
        deadline = trio.current_time() + self._calls.timeout
        await self._wait_turn(order, deadline)
        try:
            self._check_awake(order)
            if owner is not None:
                self._client.pauses.require(owner)
            after = next_sync_state(self._state, order, guarded=self._guarded)
            self._busy, self._broken = order, None
            with self.times.record(order.value):
                self._note_begin(order)
                await work(deadline)
            self._note_done(order, after)
        except (ControlCallFailed, EngineUnavailable) as error:
            self._note_failure(order, error)
            raise
        except trio.Cancelled:
            self._enter(SyncState.FAILED)  # the program ends, and does not learn what comes of it
            raise
        finally:
            self._busy = None
            self._turn.release()
            self.on_change()

    async def _wait_turn(self, order: SyncOrder, deadline: float) -> None:
        with trio.move_on_at(deadline):
            await self._turn.acquire()
            return
        busy = "another order" if self._busy is None else self._busy.path
        raise ControlCallTimeout(
            f"{order.path} timed out waiting for {busy} to end", phase=order.value, failures={}
        )

    def _check_awake(self, order: SyncOrder) -> None:
        hold = self._client.gate.find(HoldKind.SLEEP)
        touches = order not in {SyncOrder.INIT, SyncOrder.SHUTDOWN}
        if self._guarded and touches and hold is not None and "weights" in hold.asleep:
            raise StateConflict(
                f"{order.path} needs the weights, which sleep: wake them up first, with "
                "POST /wake_up?tags=weights",
                state="sleeping",
                holder=hold.owner,
                since=hold.wall,
            )

    async def _disconnect(self, deadline: float) -> None:
        # Engines that are at no update are left alone: they may be generating.
        if self.incomplete:
            await self._break_off(deadline, self.incomplete)
        try:
            await self._engines.pass_on(SyncOrder.SHUTDOWN, {}, deadline)
        except ControlCallTimeout:
            raise
        except ControlCallFailed:
            # An update is under way that we know nothing of.
            await self._break_off(deadline, None)
            await self._engines.pass_on(SyncOrder.SHUTDOWN, {}, deadline)

    async def _break_off(self, deadline: float, ranks: Collection[int] | None) -> None:
        finished = await self._engines.break_off(deadline, ranks)
        if finished and not self._ledger.began_chunks:
            self._ledger.restore()
        await self._engines.load_adapters(deadline)

    # What is known

    def _note_begin(self, order: SyncOrder) -> None:
        if order in {SyncOrder.START, SyncOrder.START_DRAFT}:
            draft = order is SyncOrder.START_DRAFT
            self._ledger.begin(self._client.serving_ranks, draft=draft)
        elif order is SyncOrder.UPDATE:
            self._ledger.began_chunks = True
        self.on_change()

    def _note_done(self, order: SyncOrder, state: SyncState) -> None:
        self._failure = self._broken if state is not SyncState.UNINITIALIZED else None
        self._enter(state if self._failure is None else SyncState.FAILED)
        if order is SyncOrder.UPDATE:
            self._ledger.chunks += 1
        elif order is SyncOrder.FINISH:
            self._ledger.finish(self._client.ranks, self._client.serving_ranks)

    def _note_failure(self, order: SyncOrder, error: ControlCallFailed | EngineUnavailable) -> None:
        failures = error.failures if isinstance(error, ControlCallFailed) else {}
        self._failure = SyncFailure(order.value, failures)
        self._enter(SyncState.FAILED)
        _LOGGER.error(
            "%s; POST %s, then %s",
            str(error).rstrip("."),
            SyncOrder.SHUTDOWN.path,
            SyncOrder.INIT.path,
        )

    def _note_loss(self, rank: int, error: VllmFrontError) -> None:
        """Take note that the process of *rank* is lost: the next one has other weights."""
        self._ledger.lose(rank)
        if self._ledger.changed:
            _LOGGER.warning(
                "Engine %d is lost, and with it the weights%s that it was given: the next one has "
                "those of the model's files until they are updated",
                rank,
                "" if self._ledger.expected is None else f" {self._ledger.expected!r}",
            )
        lost = SyncFailure("connection", {rank: str(error)})
        if self._busy is not None:
            self._broken = lost
        elif self._state is not SyncState.UNINITIALIZED:
            self._failure = lost
            self._enter(SyncState.FAILED)
        self._unseen.discard(rank)
        self.on_change()

    def _look_for_unseen(self) -> None:
        """Find out which engines are not those that another process told us of."""
        if not self._unseen:
            return
        for rank in self._client.snapshot().ranks:
            if rank.rank not in self._unseen:
                continue
            if rank.incarnation > 1:
                error = EngineDied(f"engine {rank.rank} was replaced while no frontend was there")
                self._note_loss(rank.rank, error)
            elif rank.state.connected:
                self._unseen.discard(rank.rank)

    def _enter(self, state: SyncState) -> None:
        if state is not self._state:
            self._state, self._since = state, trio.current_time()
