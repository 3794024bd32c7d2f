"""Which engines are there: they load, join, are lost, and may come back."""

import logging
from collections.abc import Callable, Iterable

from vllmfront.engine.client._info import EngineInfo
from vllmfront.engine.client._rank import EngineRank
from vllmfront.engine.client._state import EngineState, StateLevel
from vllmfront.engine.metrics import EngineMetrics
from vllmfront.engine.transport import MessageRouter, PeerGone
from vllmfront.engine.wire import Registration, encode_abort
from vllmfront.errors import EngineDied, EngineUnavailable, Reason, StartupFailed, VllmFrontError

logger = logging.getLogger(__name__)

SERVED_VERSIONS = ("0.32.", "0.33.")
"""Versions that this frontend was tried with."""


class Membership:
    """The engines of one client and the state that they have together.

    The client is READY while any engine is, once all were or have failed; LOADING while none is
    but one may become so; else DEAD.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        metrics: EngineMetrics,
        inputs: MessageRouter,
        *,
        watches_loading: bool,
    ) -> None:
        self.ranks = {rank: EngineRank(rank) for rank in ranks}
        self.state = StateLevel()
        self.info = EngineInfo.of({})
        self._metrics = metrics
        self._inputs = inputs
        self._watches_loading = watches_loading
        self._loss_observers: list[Callable[[EngineRank], None]] = []
        self._arrival_observers: list[Callable[[EngineRank], None]] = []
        self._served_before = False
        self._warned_versions = set[str]()
        self.ending = False
        """Whether somebody has asked the engines to end: their loss is no news then."""

    def on_loss(self, observer: Callable[[EngineRank], None]) -> None:
        """Call *observer* with each engine that is lost, when its state says so already."""
        self._loss_observers.append(observer)

    def on_arrival(self, observer: Callable[[EngineRank], None]) -> None:
        """Call *observer* with each engine of which a new process says HELLO."""
        self._arrival_observers.append(observer)

    def send(self, engine: EngineRank, frames: list[bytes]) -> None:
        """Send *frames* to *engine*.

        Raises:
            PeerGone: It is not connected; its loss has been noted.
        """
        try:
            self._inputs.send_nowait(engine.identity, frames)
        except PeerGone:
            self.lose(engine, EngineDied(f"engine {engine.rank} is not connected any more"))
            raise

    def is_connected(self, engine: EngineRank) -> bool:
        """Tell whether *engine* would get what is sent now."""
        try:
            self._inputs.send_nowait(engine.identity, encode_abort([]))
        except PeerGone:
            return False
        return True

    def engine_arrived(self, rank: int) -> None:
        """Take note of a new process of *rank*; what its predecessor ran has ended."""
        engine = self.ranks[rank]
        if engine.state is EngineState.READY:
            self.lose(engine, EngineDied(f"engine {rank} was replaced by a new process"))
        engine.incarnation += 1
        engine.descriptor = None
        engine.inherited = False
        engine.error = None
        engine.silent = False
        engine.state = EngineState.LOADING
        for observer in self._arrival_observers:
            observer(engine)
        self._update()

    def engine_joined(self, rank: int, registration: Registration) -> None:
        """Take note that *rank* can serve."""
        engine = self.ranks[rank]
        gone = engine.state is not EngineState.LOADING and not engine.silent
        if engine.incarnation and gone:
            logger.info("Engine %d was lost before its last words of start-up were read", rank)
            return
        engine.registration = registration
        engine.metrics = self._metrics.open_rank(rank, registration.max_model_len)
        engine.error = None
        engine.silent = False
        engine.state = EngineState.READY
        known = {n: one.registration for n, one in self.ranks.items()}
        self.info = EngineInfo.of({n: one for n, one in known.items() if one is not None})
        self._warn_of_version(rank, registration.vllm_version)
        logger.info(
            "Engine %d is ready: vLLM %s, at most %s tokens a request, %s KV cache blocks",
            rank,
            registration.vllm_version,
            registration.max_model_len,
            registration.num_gpu_blocks,
        )
        self._update()

    def engine_left(self, rank: int) -> None:
        """Take note that the connection of *rank* has ended while it was loading.

        Should that have been the network's fault, it may still join.
        """
        engine = self.ranks[rank]
        if self._watches_loading and engine.state is EngineState.LOADING:
            engine.silent = True
            self.lose(engine, EngineDied(f"engine {rank} closed its connection while loading"))

    def lose(self, engine: EngineRank, error: VllmFrontError) -> None:
        """Take note that *engine* is gone, unless that is known: the first cause sticks."""
        if engine.state is EngineState.DEAD:
            return
        level = logging.INFO if self.ending else logging.ERROR
        logger.log(level, "Engine %d is lost: %s", engine.rank, error)
        engine.state = EngineState.DEAD
        engine.error = error
        engine.descriptor = None
        engine.metrics.scheduler.forget_gauges()
        engine.load.report(0, 0)
        for observer in self._loss_observers:
            observer(engine)
        self._update()

    def start_failed(self, error: StartupFailed) -> None:
        """Take note that the engines did not all join in time."""
        for engine in self.ranks.values():
            self.lose(engine, error)

    def unavailable(self) -> VllmFrontError:
        """Return why no engine can take a request."""
        if self.state.value is EngineState.DEAD:
            return self._first_death()
        return EngineUnavailable(
            "The engine is loading the model; try again later", reason=Reason.LOADING
        )

    def ready(self) -> list[EngineRank]:
        """Return the engines that serve now."""
        return [engine for engine in self.ranks.values() if engine.state is EngineState.READY]

    def _first_death(self) -> VllmFrontError:
        error = self.state.error
        return EngineDied("no engine is left") if error is None else error.twin()

    def _update(self) -> None:
        states = {engine.state for engine in self.ranks.values()}
        ready, loading = EngineState.READY in states, EngineState.LOADING in states
        if ready and (self._served_before or not loading):
            self._served_before = True
            self.state.set(EngineState.READY)
        elif ready or loading:
            self.state.set(EngineState.LOADING)
        else:
            errors = (engine.error for engine in self.ranks.values())
            self.state.set(EngineState.DEAD, next(filter(None, errors), None))

    def _warn_of_version(self, rank: int, version: str | None) -> None:
        if version is None or version.startswith(SERVED_VERSIONS):
            return
        if version not in self._warned_versions:
            self._warned_versions.add(version)
            logger.warning(
                "Engine %d runs vLLM %s, which this frontend was never tried with; serving it",
                rank,
                version,
            )
