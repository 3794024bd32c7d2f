"""A frontend's link to the coordinator of somebody else."""

import logging
from collections.abc import Sequence

import trio
import zmq

from vllmfront.engine.coordinator._follower import Follower
from vllmfront.engine.coordinator._rules import needs_waking
from vllmfront.engine.coordinator._waves import LoadObserver
from vllmfront.engine.transport import MessageSubscriber, open_subscriber
from vllmfront.engine.wire import SUBSCRIBE, Registration
from vllmfront.errors import ProtocolError

_LOGGER = logging.getLogger(__name__)


class CoordinatorSubscription:
    """Knows what the coordinator publishes, and tells it of requests; ``serve`` is its body.

    It is the client's ``Waves``.
    """

    def __init__(self, ranks: Sequence[int], address: str | None = None) -> None:
        """Subscribe for a client of *ranks*.

        Args:
            ranks: Of the engines whose loads matter.
            address: Where the coordinator publishes; None: engines tell when they register.
        """
        self._follower = Follower(ranks, self._send)
        self._told = address is not None
        self._address = address
        self._address_changed = trio.Event()
        self._socket: MessageSubscriber | None = None
        self._alarm = trio.Event()

    def __repr__(self) -> str:
        where = "at an unknown address" if self._address is None else f"at {self._address}"
        return f"<CoordinatorSubscription {where}, {self._follower.state}>"

    def on_loads(self, observer: LoadObserver) -> None:
        """Call *observer* with the loads of our ranks, as often as they are published."""
        self._follower.load_observers.append(observer)

    # What clients need: ``Waves``

    @property
    def wave(self) -> int:
        return self._follower.state.wave

    @property
    def held(self) -> bool:
        return self._follower.wakes.held

    def hold(self, *, held: bool) -> None:
        self._follower.wakes.hold(held=held)
        self._alarm.set()

    def requested(self, rank: int) -> None:
        if self._socket is not None:
            self._follower.requested(rank, trio.current_time())
        else:
            self._follower.wakes.requested(self._follower.state)
        self._alarm.set()

    def engine_joined(self, rank: int, registration: Registration) -> None:
        del rank
        self._follower.wakes.set_wanted(wanted=needs_waking(registration))
        address = registration.dp_stats_address
        if self._told or address is None or address == self._address:
            return
        _LOGGER.info("The engines' coordinator publishes at %s", address)
        self._address = address
        self._address_changed.set()

    def engine_lost(self, rank: int) -> None:
        """Only the coordinator knows what that means for waves."""

    def _send(self, frames: Sequence[bytes]) -> None:
        if self._socket is not None:
            self._socket.send_frames(frames)

    # The body

    async def serve(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Stay subscribed until cancelled. Nothing that the coordinator sends ends it."""
        while True:
            address, self._address_changed = self._address, trio.Event()
            async with trio.open_nursery() as nursery:
                if address is not None:
                    nursery.start_soon(self._serve_at, context, address)
                await self._address_changed.wait()
                nursery.cancel_scope.cancel(reason="the coordinator is elsewhere")

    async def _serve_at(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        try:
            socket = open_subscriber(context, address)
        except zmq.ZMQError as error:
            _LOGGER.error(  # noqa: TRY400 - no bug of ours
                "Cannot connect to the coordinator at %s: %s; engines are not woken, and loads "
                "are those that engines tell us themselves. Look at --coordinator-address",
                address,
                error,
            )
            return
        with socket:
            socket.send_frames([SUBSCRIBE])
            self._socket = socket
            self._follower.restart()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_clock)
                    await self._read(socket)
            finally:
                self._socket = None

    async def _read(self, socket: MessageSubscriber) -> None:
        while True:
            await socket.wait_message()
            while (message := socket.receive_nowait()) is not None:
                try:
                    self._follower.take(message[0].bytes)
                except ProtocolError as error:
                    _LOGGER.warning("Ignored what the coordinator published: %s", error)

    async def _watch_clock(self) -> None:
        while True:
            self._follower.tick(trio.current_time())
            self._alarm = trio.Event()
            with trio.move_on_at(self._follower.wakes.due):
                await self._alarm.wait()
