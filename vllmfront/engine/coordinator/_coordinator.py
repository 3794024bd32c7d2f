"""The coordinator of engines that we have done the handshake with."""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio
import zmq

from vllmfront.engine.coordinator._counts import LoadTable
from vllmfront.engine.coordinator._gate import StartGate
from vllmfront.engine.coordinator._listeners import (
    CoordinatorListeners,
    CoordinatorSockets,
    open_coordinator_sockets,
)
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
from vllmfront.engine.transport import Message, MessageReceiver
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

PAST_WAVE = -1
"""A wave that is over for every engine: one that gets a request for it wakes the others itself."""


@attrs.frozen(kw_only=True)
class CoordinatorSnapshot:
    """A coordinator at one moment."""

    wave: int
    running: bool
    engines: int
    """How many it coordinates."""

    subscribed: int
    gate_open: bool
    held: bool


class Coordinator:
    """Has engines that step together begin together; ``serve`` is its body.

    It is the client's ``Waves`` as well. While it is not served, requests carry a wave that makes
    the engines wake each other.
    """

    def __init__(self, engines: int) -> None:
        """Coordinate *engines*, with indexes from 0: all of the deployment."""
        self._state = WaveState()
        self._gate = StartGate(engines)
        self._table = LoadTable.of(engines)
        self._wakes = WakeUps()
        self._load_observers: list[LoadObserver] = []
        self._sockets: CoordinatorSockets | None = None
        self._alarm = trio.Event()
        self._sleeps_until = -math.inf

    def __repr__(self) -> str:
        return f"<Coordinator {self.snapshot()}>"

    def snapshot(self) -> CoordinatorSnapshot:
        return CoordinatorSnapshot(
            wave=self._state.wave,
            running=self._state.running,
            engines=self._gate.engines,
            subscribed=self._gate.subscribed,
            gate_open=self._gate.is_open,
            held=self._wakes.held,
        )

    def on_loads(self, observer: LoadObserver) -> None:
        """Call *observer* with what an engine reports, as soon as it does."""
        self._load_observers.append(observer)

    # What clients need: ``Waves``

    @property
    def wave(self) -> int:
        return PAST_WAVE if self._sockets is None else self._state.wave

    @property
    def held(self) -> bool:
        return self._wakes.held

    def hold(self, *, held: bool) -> None:
        self._wakes.hold(held=held)
        self._call()

    def requested(self, rank: int) -> None:
        # Nobody is left out, not even the rank that has the request: should that be aborted
        # before it is looked at, the others would wait for this one for ever.
        del rank
        self._wakes.requested(self._state)
        self._call()

    def engine_joined(self, rank: int, registration: Registration) -> None:
        self._wakes.set_wanted(wanted=needs_waking(registration))
        self._table.forget(rank)
        self._doubt()

    def engine_lost(self, rank: int) -> None:
        self._table.forget(rank)
        self._doubt()

    def resize(self, engines: int) -> None:
        """Coordinate *engines* from now on."""
        _LOGGER.info("coordinating %d engines, %d before", engines, self._gate.engines)
        self._table.resize(engines)
        if self._gate.resize(engines):
            self._say_ready()
        self._set_alarm()

    # The body

    async def serve(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        listeners: CoordinatorListeners,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve engines and frontends until cancelled. Nothing that they send ends it."""
        with open_coordinator_sockets(context, listeners) as sockets:
            self._gate = StartGate(self._gate.engines)  # who was there will subscribe anew
            self._sockets = sockets
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_read, sockets.engines, self._take_subscription)
                    nursery.start_soon(_read, sockets.reports, self._take_report)
                    nursery.start_soon(_read, sockets.frontends, self._take_notice)
                    nursery.start_soon(self._watch_clock)
                    task_status.started()
            finally:
                self._sockets = None
                self._state = attrs.evolve(self._state, running=False)

    def _take_subscription(self, message: Message) -> None:
        word = message[0].bytes
        if word.startswith(SUBSCRIBE):
            if self._gate.subscribe():
                self._say_ready()
            # It may have missed a wake-up call. One that runs already ignores this one.
            ran = self._state.running
            self._doubt()
            if ran:
                self._wake(WakeUp(self._state.wave, None))
        elif word.startswith(UNSUBSCRIBE):
            self._gate.unsubscribe()
            self._doubt()
        else:
            raise ProtocolError(f"an engine said {word[:20]!r} instead of subscribing")

    def _take_report(self, message: Message) -> None:
        batch = decode_batch([frame.bytes for frame in message])
        if not isinstance(batch, Batch):
            return
        if batch.scheduler_stats is not None:
            self._take_load(batch.engine_index, batch.scheduler_stats)
        if batch.wave_complete is not None:
            self._apply(decide(self._state, Event.ENDED, batch.wave_complete))
        elif batch.start_wave is not None:
            self._apply(decide(self._state, Event.STARTED, batch.start_wave, batch.engine_index))

    def _take_load(self, engine: int, stats: Mapping[str, Any]) -> None:
        report = read_step_load(stats)
        if not self._table.report(engine, report.load, report.wave, report.step):
            raise ProtocolError(f"engine {engine} is none of {len(self._table)} that there are")
        self._set_alarm()
        for observer in self._load_observers:
            observer({engine: report.load})

    def _take_notice(self, message: Message) -> None:
        word = message[0].bytes
        if word[:1] in {SUBSCRIBE, UNSUBSCRIBE}:
            if word[:1] == SUBSCRIBE:
                self._announce()  # it should not have to wait for something to happen
            return
        notice = decode_frontend_notice(word)
        if isinstance(notice, ScaleNotice):
            self.resize(notice.engine_count)
            return
        outcome = decide(self._state, Event.REQUESTED, notice.wave, notice.engine_index)
        if outcome.wake_up is None:
            return
        self._apply(attrs.evolve(outcome, wake_up=None))
        self._wakes.owe(self._state)
        if self._wakes.take(trio.current_time()):
            self._wake(outcome.wake_up)
        self._set_alarm()

    # What follows

    def _apply(self, outcome: Outcome) -> None:
        self._state = outcome.state
        self._wakes.observed(self._state)
        if outcome.wake_up is not None:
            self._wake(outcome.wake_up)
        if outcome.announce:
            _LOGGER.debug("%s", self._state)
            self._announce()

    def _doubt(self) -> None:
        """Believe no more that the engines run: they will say so, and calls do no harm."""
        if self._state.running:
            self._state = attrs.evolve(self._state, running=False)
            self._announce()
        self._wakes.renew()
        self._call()

    def _call(self) -> None:
        """Wake the engines if that is due, and see to it that it is done when it will be."""
        if self._sockets is not None and self._wakes.take(trio.current_time()):
            self._wake(WakeUp(self._state.wave, None))
        self._set_alarm()

    def _wake(self, wake_up: WakeUp) -> None:
        if self._sockets is not None:
            self._sockets.engines.send_frames(encode_start_dp_wave(wake_up.wave, wake_up.left_out))

    def _say_ready(self) -> None:
        if self._sockets is not None:
            self._sockets.engines.send_frames([READY_GATE])

    def _announce(self) -> None:
        self._tell_frontends(LoadReport(None, self._state.wave, self._state.running))

    def _tell_frontends(self, report: LoadReport) -> None:
        if self._sockets is not None:
            self._sockets.frontends.send_frames([encode_load_report(report)])

    async def _watch_clock(self) -> None:
        while True:
            now = trio.current_time()
            self._call()
            if self._table.due <= now:
                loads = self._table.take(now)
                self._tell_frontends(LoadReport(loads, self._state.wave, self._state.running))
            self._alarm = trio.Event()
            self._sleeps_until = min(self._wakes.due, self._table.due)
            with trio.move_on_at(self._sleeps_until):
                await self._alarm.wait()

    def _set_alarm(self) -> None:
        if min(self._wakes.due, self._table.due) < self._sleeps_until:
            self._alarm.set()


async def _read(receiver: MessageReceiver, take: Callable[[Message], None]) -> None:
    """Give what comes to *take*; a message that makes no sense costs itself and a log line."""
    while True:
        await receiver.wait_message()
        while (message := receiver.receive_nowait()) is not None:
            try:
                take(message)
            except ProtocolError as error:
                _LOGGER.warning("The coordinator ignored a message: %s", error)
