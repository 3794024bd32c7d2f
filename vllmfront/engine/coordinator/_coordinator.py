"""The coordinator of engines that we have done the handshake with."""

import logging
import math
from collections.abc import Callable, Sequence

import attrs
import trio
import zmq

from vllmfront.engine.coordinator._judgement import CoordinatorJudgement
from vllmfront.engine.coordinator._listeners import (
    CoordinatorListeners,
    CoordinatorSockets,
    open_coordinator_sockets,
)
from vllmfront.engine.coordinator._waves import LoadObserver
from vllmfront.engine.transport import MessageReceiver
from vllmfront.engine.wire import SUBSCRIBE, Registration
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
        self._judgement = CoordinatorJudgement(engines, self._to_engines, self._to_frontends)
        self._sockets: CoordinatorSockets | None = None
        self._alarm = trio.Event()
        self._sleeps_until = -math.inf

    def __repr__(self) -> str:
        return f"<Coordinator {self.snapshot()}>"

    def snapshot(self) -> CoordinatorSnapshot:
        judgement = self._judgement
        return CoordinatorSnapshot(
            wave=judgement.state.wave,
            running=judgement.state.running,
            engines=judgement.gate.engines,
            subscribed=judgement.gate.subscribed,
            gate_open=judgement.gate.is_open,
            held=judgement.wakes.held,
        )

    def on_loads(self, observer: LoadObserver) -> None:
        """Call *observer* with what an engine reports, as soon as it does."""
        self._judgement.load_observers.append(observer)

    # What clients need: ``Waves``

    @property
    def wave(self) -> int:
        return PAST_WAVE if self._sockets is None else self._judgement.state.wave

    @property
    def held(self) -> bool:
        return self._judgement.wakes.held

    def hold(self, *, held: bool) -> None:
        self._judgement.wakes.hold(held=held)
        self._say_due()

    def requested(self, rank: int) -> None:
        # Nobody is left out, not even the rank that has the request: should that be aborted
        # before it is looked at, the others would wait for this one for ever.
        del rank
        self._judgement.wakes.requested(self._judgement.state)
        self._say_due()

    def engine_joined(self, rank: int, registration: Registration) -> None:
        self._judgement.engine_joined(rank, registration)
        self._say_due()

    def engine_lost(self, rank: int) -> None:
        self._judgement.engine_lost(rank)
        self._say_due()

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
            self._sockets = sockets
            self._judgement.restart()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, sockets.engines, self._take_subscription)
                    nursery.start_soon(self._read, sockets.reports, self._judgement.take_report)
                    nursery.start_soon(self._read, sockets.frontends, self._take_notice)
                    nursery.start_soon(self._watch_clock)
                    task_status.started()
            finally:
                self._sockets = None

    async def _read(
        self, receiver: MessageReceiver, take: Callable[[Sequence[bytes]], None]
    ) -> None:
        """Give what comes to *take*; what makes no sense costs itself and a log line."""
        while True:
            await receiver.wait_message()
            while (message := receiver.receive_nowait()) is not None:
                try:
                    take([frame.bytes for frame in message])
                except ProtocolError as error:
                    _LOGGER.warning("The coordinator ignored a message: %s", error)
            self._say_due()

    def _take_subscription(self, frames: Sequence[bytes]) -> None:
        # Not before: a call that overtakes READY ends the engine.
        if self._sockets is not None and frames[0].startswith(SUBSCRIBE):
            self._sockets.engines.admit()
        self._judgement.take_subscription(frames)

    def _take_notice(self, frames: Sequence[bytes]) -> None:
        self._judgement.take_notice(frames, trio.current_time())

    def _to_engines(self, frames: Sequence[bytes]) -> None:
        if self._sockets is not None:
            self._sockets.engines.send_frames(frames)

    def _to_frontends(self, frames: Sequence[bytes]) -> None:
        if self._sockets is not None:
            self._sockets.frontends.send_frames(frames)

    def _say_due(self) -> None:
        """Say what is due now, and see to it that the rest is said in time."""
        if self._sockets is not None:
            self._judgement.tick(trio.current_time())
        if self._judgement.due < self._sleeps_until:
            self._alarm.set()

    async def _watch_clock(self) -> None:
        while True:
            self._say_due()
            self._alarm = trio.Event()
            self._sleeps_until = self._judgement.due
            with trio.move_on_at(self._sleeps_until):
                await self._alarm.wait()
