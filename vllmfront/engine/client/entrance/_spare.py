"""The slot that no client uses at present.

Engines are connected to it all the same. Somebody has to accept them, or they would try anew
every half minute and fill the listener's queue with dead connections; and where an engine has
nothing to say to anybody, it tells its statistics to the first slot, which this one may be.
"""

import logging
from collections.abc import Sequence

import trio
import zmq

from vllmfront.engine.client.entrance._entrance import Slot
from vllmfront.engine.client.membership import EngineRank, Membership
from vllmfront.engine.client.reading import OutputInbox
from vllmfront.engine.transport import (
    Message,
    MessageReceiver,
    PeerGone,
    open_receiver,
    open_router,
)
from vllmfront.engine.wire import Batch, decode_batch, encode_abort, row_id
from vllmfront.errors import ProtocolError

_LOGGER = logging.getLogger(__name__)


class SpareSlot:
    """Reads what comes to a slot without a client; ``serve`` is its body."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        slot: Slot,
        *,
        inbox: OutputInbox,
        membership: Membership,
    ) -> None:
        self._context = context
        self._slot = slot
        self._inbox = inbox
        self._membership = membership

    async def serve(self) -> None:
        """Hold the slot's sockets until cancelled."""
        inputs, outputs = self._slot.inputs.duplicate(), self._slot.outputs.duplicate()
        with (
            open_router(self._context, "", adopt_fd=inputs) as router,
            open_receiver(self._context, "", adopt_fd=outputs) as receiver,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_ignore, router)
                nursery.start_soon(self._read_outputs, receiver)

    async def _read_outputs(self, receiver: MessageReceiver) -> None:
        told = set[str]()
        while True:
            await receiver.wait_message()
            while (message := receiver.receive_nowait()) is not None:
                self._take(message, told)

    def _take(self, message: Message, told: set[str]) -> None:
        """Take the statistics; end requests of a client that is gone, but for those in *told*."""
        try:
            batch = decode_batch([frame.bytes for frame in message])
        except ProtocolError as error:
            _LOGGER.debug("Ignored a malformed message to the spare slot: %s", error)
            return
        if not isinstance(batch, Batch):
            return  # a report of death, which the slot in use gets as well
        engine = self._inbox.sender(batch)
        if engine is None:
            return
        self._inbox.note_life(engine, batch)
        if batch.scheduler_stats is not None:
            self._inbox.take_stats(engine, batch.scheduler_stats)
        ids = [row_id(row) for row in batch.rows]
        orphans = [one for one in ids if one is not None and one not in told]
        told.update(orphans)
        self._abort(engine, orphans)

    def _abort(self, engine: EngineRank, ids: Sequence[str]) -> None:
        if not ids:
            return
        _LOGGER.info("Aborting %d requests of a frontend that is gone", len(ids))
        try:
            self._membership.send(engine, encode_abort(ids))
        except PeerGone:
            _LOGGER.debug("Engine %d has gone as well", engine.rank)


async def _ignore(router: MessageReceiver) -> None:
    """Drop registrations: an engine says the same on the slot in use."""
    while True:
        await router.wait_message()
        while router.receive_nowait() is not None:
            pass
