"""How a client begins: as the first, or after another; and what it leaves for the next."""

from collections.abc import Awaitable, Callable
from functools import partial

from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client.entrance import (
    SLOTS,
    Attachment,
    ClientSockets,
    Inheritance,
    Introduction,
    Reception,
    Recorder,
    Slot,
    SpareSlot,
    Succession,
    WorkerSlots,
    inherit,
    other_slot,
)
from vllmfront.engine.client.membership import Membership
from vllmfront.engine.client.orders import UtilityCalls
from vllmfront.engine.client.reading import (
    OutputInbox,
)
from vllmfront.engine.client.requests import (
    IdSource,
)
from vllmfront.engine.handshake import (
    Roster,
    watch_restarts,
    watch_start_up,
)
from vllmfront.errors import StartupFailed

Task = Callable[[], Awaitable[None]]


def make_attachment(
    sockets: ClientSockets, roster: Roster, membership: Membership, calls: UtilityCalls
) -> Attachment | None:
    """Make what takes up engines that an earlier frontend has left; None: there is nothing left."""
    if sockets.saved is None:
        return None
    return Attachment(sockets.saved.engines, roster=roster, membership=membership, calls=calls)


def make_recorder(
    sockets: ClientSockets, ids: IdSource, membership: Membership, attachment: Attachment | None
) -> Recorder | None:
    """Make what keeps what the next frontend needs; None: nobody asks for that."""
    if sockets.record is None or sockets.entrance is None:
        return None
    return Recorder(
        sockets.record,
        sockets.entrance,
        first_id=ids.first,
        membership=membership,
        awaited=dict if attachment is None else lambda: attachment.awaited,
        kept=None if sockets.saved is None else sockets.saved.control,
    )


def make_succession(
    sockets: ClientSockets,
    roster: Roster,
    membership: Membership,
    inbox: OutputInbox,
    *,
    recorder: Recorder | None,
    reception: Reception | None,
) -> Succession | None:
    """Make what lets another process follow; None where somebody else does the handshake."""
    entrance = sockets.entrance
    if entrance is None or reception is None:
        return None
    free = entrance.slots[other_slot(sockets.slot)]
    return Succession(
        entrance,
        sockets.slot,
        roster=roster,
        membership=membership,
        reception=reception,
        spare=SpareSlot(sockets.context, free, inbox=inbox, membership=membership),
        recorder=recorder,
    )


def make_worker_slots(
    config: EngineClientConfig, sockets: ClientSockets, inbox: OutputInbox, membership: Membership
) -> WorkerSlots | None:
    """Make what holds the slots of other processes of this server; None: there are none."""
    if not config.workers or sockets.entrance is None:
        return None

    def hold(slot: Slot) -> SpareSlot:
        return SpareSlot(sockets.context, slot, inbox=inbox, membership=membership)

    slots = sockets.entrance.slots[SLOTS : SLOTS + config.workers]
    return WorkerSlots(slots, hold, first=SLOTS)


def begin_first(
    config: EngineClientConfig,
    roster: Roster,
    membership: Membership,
    succession: Succession | None,
    attachment: Attachment | None,
    *,
    introduction: Introduction,
) -> Task:
    """Be the first in a row of generations; return what watches the engines come up."""
    if succession is not None:
        succession.lead()
    return partial(
        _watch_start_up, roster, config.ready_timeout, membership, attachment, introduction
    )


def begin_next(
    config: EngineClientConfig,
    roster: Roster,
    membership: Membership,
    succession: Succession,
    inheritance: Inheritance,
) -> Task:
    """Take the place after the client before us; return what watches engines come up."""
    inherit(inheritance.legacy, roster, membership)
    succession.receive()
    return partial(watch_restarts, roster, config.ready_timeout, membership)


async def _watch_start_up(
    roster: Roster,
    ready_timeout: float,
    membership: Membership,
    attachment: Attachment | None,
    introduction: Introduction,
) -> None:
    """Give the client up when its engines do not join in time, and later one that does not."""
    if attachment is not None:
        await attachment.settled.wait()
    try:
        await introduction.wait(ready_timeout)
        await watch_start_up(roster, ready_timeout)
    except StartupFailed as error:
        membership.give_up(error)
        raise
    await watch_restarts(roster, ready_timeout, membership)
