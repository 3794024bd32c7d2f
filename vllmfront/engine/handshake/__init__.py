"""Start-up of engines as its owner: HELLO, INIT, READY, and the registration."""

from vllmfront.engine.handshake._addresses import (
    ClientAddresses,
    CoordinatorAddresses,
)
from vllmfront.engine.handshake._directory import Directory, DirectoryConfig
from vllmfront.engine.handshake._epochs import Epochs
from vllmfront.engine.handshake._owner import (
    HandshakeOwner,
    Members,
    OthersEngine,
    identity_of,
    rank_of,
    take_registration,
)
from vllmfront.engine.handshake._roster import Roster, Step
from vllmfront.engine.handshake._start_up import watch_restarts, watch_start_up

__all__ = [
    "ClientAddresses",
    "CoordinatorAddresses",
    "Directory",
    "DirectoryConfig",
    "Epochs",
    "HandshakeOwner",
    "Members",
    "OthersEngine",
    "Roster",
    "Step",
    "identity_of",
    "rank_of",
    "take_registration",
    "watch_restarts",
    "watch_start_up",
]
