"""Start-up of engines as its owner: HELLO, INIT, READY, and the registration."""

from vllmfront.engine.handshake._owner import (
    Members,
    identity_of,
    serve_handshake,
    take_registration,
)
from vllmfront.engine.handshake._roster import Roster, Step, watch_start_up

__all__ = [
    "Members",
    "Roster",
    "Step",
    "identity_of",
    "serve_handshake",
    "take_registration",
    "watch_start_up",
]
