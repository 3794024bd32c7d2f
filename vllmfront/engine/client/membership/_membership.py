"""Which engines are there: they load, join, fall silent, are lost, and may come back."""

import logging
from collections.abc import Callable, Iterable

import trio

from vllmfront.engine.client.membership._absence import seconds_until_ready, unavailable
from vllmfront.engine.client.membership._adapter_table import AdapterTable
from vllmfront.engine.client.membership._info import EngineInfo
from vllmfront.engine.client.membership._observers import Observed
from vllmfront.engine.client.membership._rank import FIRST_WEIGHTS, EngineRank
from vllmfront.engine.client.membership._rank_setup import RankSetup
from vllmfront.engine.client.membership._state import (
    EngineState,
    RankEvent,
    RankState,
    StateLevel,
    client_state,
)
from vllmfront.engine.client.membership._version import VersionWarning
from vllmfront.engine.metrics import EngineMetrics
from vllmfront.engine.routing import RankLoad
from vllmfront.engine.transport import MessageRouter, PeerGone
from vllmfront.engine.wire import Registration, encode_abort
from vllmfront.errors import EngineDied, EngineUnavailable, StartupFailed, VllmFrontError

_LOGGER = logging.getLogger(__name__)


class Membership(Observed):
    """The engines of one client and the state that they have together."""

    def __init__(
        self,
        ranks: Iterable[int],
        metrics: EngineMetrics,
        inputs: MessageRouter,
        *,
        watches_loading: bool,
        loads: Callable[[int], RankLoad] = lambda _: RankLoad(),
    ) -> None:
        super().__init__()
        self.ranks = {rank: EngineRank(rank, loads(rank)) for rank in ranks}
        self.state = StateLevel()
        self.info = EngineInfo.of({})
        self.ready: list[EngineRank] = []
        """Those that serve now, replaced at each change."""

        self.setups: list[RankSetup] = []
        """What engines are told when they join."""

        self.adapters = AdapterTable()
        """What requests may be for besides the model."""

        self._metrics = metrics
        self._inputs = inputs
        self._watches_loading = watches_loading
        self._has_served = False
        self._given_up: VllmFrontError | None = None
        self._warn_of_version = VersionWarning()
        self.ending = False
        """Whether somebody has asked the engines to end: their loss is no news then."""

    @property
    def has_served(self) -> bool:
        """Whether the client was READY before."""
        return self._has_served

    @property
    def given_up(self) -> VllmFrontError | None:
        """Why no engine will serve any more, once somebody has given up."""
        return self._given_up

    def note_ending(self) -> None:
        """Take note that somebody has asked the engines to end."""
        self.ending = True
        self._update()

    def send(self, engine: EngineRank, frames: list[bytes]) -> None:
        """Send *frames* to *engine*.

        Raises:
            PeerGone: It is not connected; its loss has been noted.
        """
        try:
            self.send_among_others(engine, frames)
        finally:
            self.sent()

    def send_among_others(self, engine: EngineRank, frames: list[bytes]) -> None:
        """As ``send``, for one of several messages: ``sent`` is due after the last."""
        try:
            self._inputs.send_among_others(engine.identity, frames)
        except PeerGone:
            self.cut_off(engine, EngineDied(f"engine {engine.rank} is not connected any more"))
            raise

    def sent(self) -> None:
        """Let the inputs' owner look for what sends may have hidden from it."""
        self._inputs.wake_owner()

    def is_connected(self, engine: EngineRank) -> bool:
        """Tell whether *engine* would get what is sent now."""
        try:
            self._inputs.send_nowait(engine.identity, encode_abort([]))
        except PeerGone:
            return False
        return True

    def engine_delayed(self, rank: int, start_at: float) -> None:
        """Take note that a process of *rank* is to be started, but not before *start_at*."""
        self.ranks[rank].start_at = start_at
        self._update()

    def engine_expected(self, rank: int) -> None:
        """Take note that a process of *rank* was started, which will say HELLO."""
        engine = self.ranks[rank]
        if engine.state.connected:
            self.lose(engine, EngineDied(f"engine {rank} is being replaced"))
        engine.expected = False
        engine.enter(RankEvent.STARTED)
        engine.expected = True
        engine.cut_off = False
        self.ending = False
        self._update()

    def engine_awaited(self, rank: int) -> None:
        """Take note that a process of *rank* which an earlier frontend knew may connect.

        It says neither HELLO nor its registration; its connections may be there already.
        """
        engine = self.ranks[rank]
        engine.enter(RankEvent.STARTED)
        engine.incarnation = 1
        engine.expected = engine.broke_off = engine.cut_off = False
        self._update()

    def engine_arrived(self, rank: int, *, greets: bool = False) -> None:
        """Take note of a new process of *rank*; what its predecessor ran has ended.

        Where it *greets* it has just said HELLO, so it has no connections for data yet.
        """
        engine = self.ranks[rank]
        if engine.state.connected:
            self.lose(engine, EngineDied(f"engine {rank} was replaced by a new process"))
        engine.enter(RankEvent.STARTED)
        engine.incarnation += 1
        engine.descriptor = None
        engine.expected = engine.unplaced = engine.broke_off = engine.cut_off = False
        for observer in [*self._arrival_observers, *(self._greeting_observers if greets else ())]:
            observer(engine)
        self._update()

    def engine_joined(
        self, rank: int, registration: Registration, *, prepared: bool = False
    ) -> None:
        """Take note that *rank* can serve, once it was told what it has to know.

        It was already where *prepared*, which is for engines that another client has served.
        """
        engine = self.ranks[rank]
        if engine.incarnation == 0:  # somebody else does the handshake
            if engine.state.connected:
                self.lose(engine, EngineDied(f"engine {rank} was replaced by a new process"))
                engine.enter(RankEvent.STARTED)
        elif engine.state.connected:
            _LOGGER.info("Engine %d has registered twice", rank)
            return
        elif engine.state is RankState.DEAD and not engine.broke_off:
            _LOGGER.info("Engine %d was lost before its last words of start-up were read", rank)
            return
        engine.registration = registration
        engine.metrics = self._metrics.open_rank(rank, registration.max_model_len)
        engine.error = None
        engine.broke_off = False
        engine.weight_version = FIRST_WEIGHTS
        engine.enter(RankEvent.JOINED)
        known = {n: one.registration for n, one in self.ranks.items()}
        self.info = EngineInfo.of({n: one for n, one in known.items() if one is not None})
        self._warn_of_version(rank, registration.vllm_version)
        _LOGGER.info(
            "Engine %d is ready: vLLM %s, at most %s tokens a request, %s KV cache blocks",
            rank,
            registration.vllm_version,
            registration.max_model_len,
            registration.num_gpu_blocks,
        )
        if prepared or self.next_setup(engine) is None:
            engine.enter(RankEvent.PREPARED)
        self._update()

    def next_setup(self, engine: EngineRank) -> RankSetup | None:
        """Return what *engine* has to be told next; None: it knows all that it has to."""
        return next((setup for setup in self.setups if setup.due(engine.rank)), None)

    def engine_prepared(self, engine: EngineRank) -> None:
        """Take note that *engine* knows what it has to, and may get requests."""
        engine.enter(RankEvent.PREPARED)
        self._update()

    def engine_left(self, rank: int) -> None:
        """Take note that the connection of *rank* has ended while it was loading.

        Should that have been the network's fault, it may still join.
        """
        engine = self.ranks[rank]
        if self._watches_loading and engine.state is RankState.LOADING:
            engine.broke_off = True
            self.lose(engine, EngineDied(f"engine {rank} closed its connection while loading"))

    def engine_returned(self, engine: EngineRank) -> None:
        """Take note that *engine*, which was cut off, is connected again, the same as before.

        What it was working on has gone elsewhere, or has ended: it is told to drop that.
        """
        _LOGGER.info("Engine %d is connected again", engine.rank)
        engine.error = None
        engine.cut_off = False
        engine.unplaced = True
        engine.enter(RankEvent.RETURNED)
        orphans, engine.orphans = engine.orphans, []
        if orphans:
            try:
                self.send(engine, encode_abort(orphans))
            except PeerGone:
                return
        if self.next_setup(engine) is None:
            engine.enter(RankEvent.PREPARED)
        self._update()

    def engine_overdue(self, rank: int, error: StartupFailed) -> None:
        """Take note that a new process of *rank* did not do a step of its start-up in time."""
        engine = self.ranks[rank]
        if engine.state is RankState.LOADING:
            self.lose(engine, error)

    def engine_unfit(self, rank: int, error: StartupFailed) -> None:
        """Take note that a new process of *rank* cannot work with the others."""
        self.engine_overdue(rank, error)

    def engine_silent(self, engine: EngineRank, error: VllmFrontError) -> None:
        """Take note that *engine*, which serves, says nothing about what it works on."""
        _LOGGER.warning("%s; its requests go on once it does", error)
        engine.error = error
        engine.enter(RankEvent.SILENT)
        self._update()

    def engine_heard(self, engine: EngineRank) -> None:
        """Take note that *engine*, which was silent, gets on with its work."""
        _LOGGER.info("Engine %d is heard again", engine.rank)
        engine.error = None
        engine.enter(RankEvent.HEARD)
        self._update()

    def engine_garbled(self, engine: EngineRank) -> None:
        """Take note that *engine* said something about its requests that nobody can read."""
        if engine.state.connected:
            for observer in self._hole_observers:
                observer(engine)

    def lose(self, engine: EngineRank, error: VllmFrontError) -> None:
        """Take note that *engine* is gone, unless that is known: the first cause sticks."""
        if engine.state is RankState.DEAD:
            return
        level = logging.INFO if self.ending else logging.ERROR
        _LOGGER.log(level, "Engine %d is lost: %s", engine.rank, error)
        engine.enter(RankEvent.LOST)
        engine.error = error
        engine.descriptor = None
        engine.expected = False
        engine.metrics.scheduler.forget_gauges()
        engine.load.report(0, 0)
        self._update()
        for observer in self._loss_observers:
            observer(engine)

    def cut_off(self, engine: EngineRank, error: VllmFrontError) -> None:
        """Take note that the connection of *engine* has ended, and with it the engine, it seems.

        Unless somebody watches its process: then what comes next is a new one.
        """
        if engine.state.connected:
            engine.cut_off = self._watches_loading and engine.incarnation > 0
            engine.orphans = []
        self.lose(engine, error)

    def give_up(self, error: VllmFrontError) -> None:
        """Take note that no engine will serve any more, for good; *error* says why."""
        if self._given_up is None:
            self._given_up = error
            for engine in self.ranks.values():
                self.lose(engine, error)
            self._update()

    def unavailable(self, rank: int | None = None) -> EngineUnavailable:
        """Return why no engine, or not engine *rank*, can take a request now."""
        return unavailable(self.state.value, self.state.error, rank, self.seconds_until_ready(rank))

    def seconds_until_ready(self, rank: int | None = None) -> float | None:
        """Return how long it takes until some engine, or *rank*, serves; None if nobody knows."""
        now = trio.current_time()
        ranks = self.ranks.values() if rank is None else [self.ranks[rank]]
        return seconds_until_ready(one.loading(now) for one in ranks if not one.state.connected)

    def _update(self) -> None:
        engines = self.ranks.values()
        self.ready = [engine for engine in engines if engine.state is RankState.READY]
        states = [engine.state for engine in engines]
        value = client_state(
            states, has_served=self._has_served, given_up=self._given_up is not None
        )
        if value is EngineState.READY:
            self._has_served = True
        first = next((engine.error for engine in engines if engine.error is not None), None)
        dead = all(state is RankState.DEAD for state in states)
        self.state.set(value, self._given_up or first, first if dead else None)
        for observer in self._change_observers:
            observer()
