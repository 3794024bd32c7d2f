"""Where engines find a client: its sockets, and who has them before and after it."""

from vllmfront.engine.client.entrance._attachment import Attachment
from vllmfront.engine.client.entrance._client_sockets import (
    ClientSockets,
    Inheritance,
    open_client_sockets,
)
from vllmfront.engine.client.entrance._deployment import (
    guest_tasks,
    make_reception,
    open_introduction,
)
from vllmfront.engine.client.entrance._entrance import SLOTS, Slot, other_slot
from vllmfront.engine.client.entrance._introduction import Introduction
from vllmfront.engine.client.entrance._reception import Reception
from vllmfront.engine.client.entrance._recorder import Recorder
from vllmfront.engine.client.entrance._spare import SpareSlot
from vllmfront.engine.client.entrance._succession import EngineLegacy, Succession, inherit
from vllmfront.engine.client.entrance._worker_slots import WorkerSlots

__all__ = [
    "SLOTS",
    "Attachment",
    "ClientSockets",
    "EngineLegacy",
    "Inheritance",
    "Introduction",
    "Reception",
    "Recorder",
    "Slot",
    "SpareSlot",
    "Succession",
    "WorkerSlots",
    "guest_tasks",
    "inherit",
    "make_reception",
    "open_client_sockets",
    "open_introduction",
    "other_slot",
]
