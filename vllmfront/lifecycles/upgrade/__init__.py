"""Replaces the running process by a new one without a request, or a stream, that fails."""

from vllmfront.lifecycles.upgrade._ask import ask_upgrade
from vllmfront.lifecycles.upgrade._channel import ChannelBroken
from vllmfront.lifecycles.upgrade._estate import Estate, HeldListener
from vllmfront.lifecycles.upgrade._pid_file import PidFile, check_free
from vllmfront.lifecycles.upgrade._predecessor import Predecessor, open_predecessor
from vllmfront.lifecycles.upgrade._successor import UpgradeFailed, own_command
from vllmfront.lifecycles.upgrade._upgrades import Frontend, UpgradePlan, Upgrades

__all__ = [
    "ChannelBroken",
    "Estate",
    "Frontend",
    "HeldListener",
    "PidFile",
    "Predecessor",
    "UpgradeFailed",
    "UpgradePlan",
    "Upgrades",
    "ask_upgrade",
    "check_free",
    "open_predecessor",
    "own_command",
]
