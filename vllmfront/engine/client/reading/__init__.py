"""What engines say, and the connections that it comes over."""

from vllmfront.engine.client.reading._connections import OutputConnections
from vllmfront.engine.client.reading._inbox import OutputInbox
from vllmfront.engine.client.reading._link import EngineLink
from vllmfront.engine.client.reading._reader import OutputReader, PushObserver
from vllmfront.engine.client.reading._reconnection import Reconnections
from vllmfront.engine.client.reading._stall import StallWatch

__all__ = [
    "EngineLink",
    "OutputConnections",
    "OutputInbox",
    "OutputReader",
    "PushObserver",
    "Reconnections",
    "StallWatch",
]
