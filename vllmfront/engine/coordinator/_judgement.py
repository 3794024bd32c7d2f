"""A coordinator without its sockets: messages in, messages out, and time in between. Pure."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from vllmfront.engine.coordinator._counts import LoadTable
from vllmfront.engine.coordinator._gate import StartGate
from vllmfront.engine.coordinator._rules import (
    Event,
    Outcome,
    WakeUp,
    WaveState,
    decide,
    needs_waking,
)
from vllmfront.engine.coordinator._wakes import WakeUps
from vllmfront.engine.coordinator._waves import LoadObserver
from vllmfront.engine.wire import (
    READY_GATE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Batch,
    LoadReport,
    Registration,
    ScaleNotice,
    decode_batch,
    decode_frontend_notice,
    encode_load_report,
    encode_start_dp_wave,
    read_step_load,
)
from vllmfront.errors import ProtocolError

_LOGGER = logging.getLogger(__name__)

Send = Callable[[Sequence[bytes]], None]


class CoordinatorJudgement:
    """What a coordinator knows, and says.

    It is to be asked by ``tick`` whenever ``due`` has come. What it takes in raises ProtocolError
    where it makes no sense, and has had no effect then.
    """

    def __init__(self, engines: int, to_engines: Send, to_frontends: Send) -> None:
        """Coordinate *engines*, with indexes from 0."""
        self.state = WaveState()
        self.gate = StartGate(engines)
        self.table = LoadTable.of(engines)
        self.wakes = WakeUps()
        self.load_observers: list[LoadObserver] = []
        self._deferred: int | None = None
        """The wave of a call that engines which wait for READY could not be told of."""

        self._to_engines = to_engines
        self._to_frontends = to_frontends

    @property
    def due(self) -> float:
        """When there is something to say without being told anything."""
        # Engines that wait for READY fail at anything else: no call before the gate is open.
        wakes = self.wakes.due if self.gate.is_open else math.inf
        return min(wakes, self.table.due)

    def tick(self, now: float) -> None:
        """Say what is due."""
        if self.gate.is_open and self.wakes.take(now):
            self._wake(WakeUp(self.state.wave, None))
        if self.table.due <= now:
            loads = self.table.take(now)
            self._tell(LoadReport(loads, self.state.wave, self.state.running))

    def restart(self) -> None:
        """Begin anew with everybody's connections: whoever was there will subscribe again."""
        self.gate = StartGate(self.gate.engines)
        self._believe_idle()

    # Who is there

    def engine_joined(self, rank: int, registration: Registration) -> None:
        self.wakes.set_wanted(wanted=needs_waking(registration))
        self.engine_lost(rank)

    def engine_lost(self, rank: int) -> None:
        self.table.forget(rank)
        self._doubt()

    def resize(self, engines: int) -> None:
        """Coordinate *engines* from now on."""
        _LOGGER.info("Coordinating %d engines, %d before", engines, self.gate.engines)
        self.table.resize(engines)
        if self.gate.resize(engines):
            self._open()

    # What comes in

    def take_subscription(self, frames: Sequence[bytes]) -> None:
        """Take what an engine says where wake-up calls go out."""
        word = frames[0]
        if word.startswith(SUBSCRIBE):
            came_back = self.gate.is_open
            if self.gate.subscribe():
                self._open()
            self._doubt()
            if came_back:
                # It may have missed a wake-up call; and what it said itself may be lost. Nobody
                # knows whether any engine waits for the others: if none does, a short wave follows.
                self._wake(WakeUp(self.state.wave, None))
        elif word.startswith(UNSUBSCRIBE):
            self.gate.unsubscribe()
            if not self.gate.is_open:
                # Whoever comes next begins with the first wave. Ranks that did not agree on the
                # number, as where only one of them got a request, might ignore each other's calls.
                self.state, self._deferred = WaveState(), None
                self._announce()
            self._doubt()
        else:
            raise ProtocolError(f"an engine said {word[:20]!r} instead of subscribing")

    def take_report(self, frames: Sequence[bytes]) -> None:
        """Take what an engine reports: its load, or a wave's begin or end."""
        batch = decode_batch(frames)
        if not isinstance(batch, Batch):
            return
        if batch.scheduler_stats is not None:
            self._take_load(batch.engine_index, batch.scheduler_stats)
        if batch.wave_complete is not None:
            self._apply(decide(self.state, Event.ENDED, batch.wave_complete))
        elif batch.start_wave is not None:
            self._apply(decide(self.state, Event.STARTED, batch.start_wave, batch.engine_index))

    def take_notice(self, frames: Sequence[bytes], now: float) -> None:
        """Take what a frontend says: that it is there, or has sent a request, or a number."""
        word = frames[0]
        if word[:1] == SUBSCRIBE:
            self._announce()  # it should not have to wait for something to happen
        elif word[:1] != UNSUBSCRIBE:
            notice = decode_frontend_notice(word)
            if isinstance(notice, ScaleNotice):
                self.resize(notice.engine_count)
                return
            outcome = decide(self.state, Event.REQUESTED, notice.wave, notice.engine_index)
            if outcome.wake_up is not None:
                self._apply(attrs.evolve(outcome, wake_up=None))
                self.wakes.owe(self.state)
                if self.gate.is_open and self.wakes.take(now):
                    self._wake(outcome.wake_up)

    def _take_load(self, engine: int, stats: Mapping[str, Any]) -> None:
        report = read_step_load(stats)
        if not self.table.report(engine, report.load, report.wave, report.step):
            raise ProtocolError(f"engine {engine} is none of {len(self.table)} that there are")
        for observer in self.load_observers:
            observer({engine: report.load})

    # What goes out

    def _apply(self, outcome: Outcome) -> None:
        self.state = outcome.state
        self.wakes.observed(self.state)
        if outcome.wake_up is not None:
            self._wake(outcome.wake_up)
        if outcome.announce:
            _LOGGER.debug("%s", self.state)
            self._announce()

    def _doubt(self) -> None:
        """Believe no more that the engines run: they will say so, and calls do no harm."""
        self._believe_idle()
        self.wakes.renew()

    def _believe_idle(self) -> None:
        if self.state.running:
            self.state = attrs.evolve(self.state, running=False)
            self.wakes.observed(self.state)
            self._announce()

    def _wake(self, wake_up: WakeUp) -> None:
        if self.gate.is_open:
            self._to_engines(encode_start_dp_wave(wake_up.wave, wake_up.left_out))
        else:
            self._deferred = wake_up.wave

    def _open(self) -> None:
        """Say READY, and what was to be said before."""
        self._to_engines([READY_GATE])
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self._to_engines(encode_start_dp_wave(max(deferred, self.state.wave), None))

    def _announce(self) -> None:
        self._tell(LoadReport(None, self.state.wave, self.state.running))

    def _tell(self, report: LoadReport) -> None:
        self._to_frontends([encode_load_report(report)])
