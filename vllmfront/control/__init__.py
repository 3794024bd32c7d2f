"""The control plane: orders to all engines at once, with deadlines; pauses; new weights.

What changes the engines' state goes through here, whoever asks for it, and is done to its end even
when they leave.
"""

from vllmfront.control._cycle import SyncCycle, SyncEvent, SyncPlan
from vllmfront.control._handover import (
    ControlLegacy,
    WeightLegacy,
    decode_control,
    encode_control,
)
from vllmfront.control._operations import (
    SLEEP_OPERATIONS,
    OperationTimes,
)
from vllmfront.control._plane import ControlConfig, ControlPlane, open_control_plane
from vllmfront.control._profiling import ProfilePlan, Profiling
from vllmfront.control._sync_state import SyncOrder, SyncState, next_sync_state, orders_after
from vllmfront.control._weight_report import SyncFailure, WeightSnapshot, WeightVersion
from vllmfront.control._weights import WeightSync

__all__ = [
    "SLEEP_OPERATIONS",
    "ControlConfig",
    "ControlLegacy",
    "ControlPlane",
    "OperationTimes",
    "ProfilePlan",
    "Profiling",
    "SyncCycle",
    "SyncEvent",
    "SyncFailure",
    "SyncOrder",
    "SyncPlan",
    "SyncState",
    "WeightLegacy",
    "WeightSnapshot",
    "WeightSync",
    "WeightVersion",
    "decode_control",
    "encode_control",
    "next_sync_state",
    "open_control_plane",
    "orders_after",
]
