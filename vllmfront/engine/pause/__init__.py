"""Holding generation back: what holds it, who, until when; and the gate that requests pass."""

from vllmfront.engine.pause._gate import HoldGate, wall_of
from vllmfront.engine.pause._hold import PARTS, EngineOrder, Hold, HoldKind, HoldSnapshot, PauseMode
from vllmfront.engine.pause._lease import Lease, LeaseAction
from vllmfront.engine.pause._phase import PauseEvent, PausePhase, next_pause_phase
from vllmfront.engine.pause._window import PauseWindow

__all__ = [
    "PARTS",
    "EngineOrder",
    "Hold",
    "HoldGate",
    "HoldKind",
    "HoldSnapshot",
    "Lease",
    "LeaseAction",
    "PauseEvent",
    "PauseMode",
    "PausePhase",
    "PauseWindow",
    "next_pause_phase",
    "wall_of",
]
