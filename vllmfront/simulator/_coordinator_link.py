"""An engine's link to the coordinator of its deployment."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vllmfront.engine.transport import MessageSubscriber, open_subscriber
from vllmfront.engine.wire import (
    READY_GATE,
    SUBSCRIBE,
    EngineAddresses,
    StartWave,
    decode_request,
)
from vllmfront.errors import ProtocolError
from vllmfront.simulator._sockets import Context, Pusher, connect_pusher


class CoordinatorLink:
    """Reports go up, wake-up calls come down. Opened by ``open_coordinator_link``."""

    def __init__(self, subscriber: MessageSubscriber, pusher: Pusher) -> None:
        self._subscriber = subscriber
        self._pusher = pusher

    def __repr__(self) -> str:
        return f"<CoordinatorLink {self._subscriber!r}>"

    async def wait_ready(self) -> None:
        """Subscribe, and return once the coordinator says that all engines have.

        Raises:
            ProtocolError: It says something else.
        """
        self._subscriber.send_frames([SUBSCRIBE])
        if (await self._subscriber.receive())[0].bytes != READY_GATE:
            raise ProtocolError("a coordinator said something before READY")

    async def read(self, take: Callable[[StartWave], None]) -> None:
        """Give wake-up calls to *take*, until cancelled."""
        while True:
            message = await self._subscriber.receive()
            if message[0].bytes == READY_GATE:
                continue  # that was for an engine which has just come
            call = decode_request([frame.buffer for frame in message])
            if not isinstance(call, StartWave):
                raise ProtocolError("a coordinator asked for something else than to wake up")
            take(call)

    def report(self, frames: list[bytes]) -> None:
        """Queue a message."""
        self._pusher.send(frames)


@contextmanager
def open_coordinator_link(
    context: Context, addresses: EngineAddresses
) -> Iterator[CoordinatorLink | None]:
    """Connect to the coordinator in *addresses* for the block; None where there is none."""
    if addresses.coordinator_input is None or addresses.coordinator_output is None:
        yield None
        return
    pusher = connect_pusher(context, addresses.coordinator_output)
    try:
        with open_subscriber(context, addresses.coordinator_input) as subscriber:
            yield CoordinatorLink(subscriber, pusher)
    finally:
        pusher.close()
