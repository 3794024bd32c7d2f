"""The client of one or more engines: streams of requests, utility calls, and their state."""

from vllmfront.engine.client._client import EngineClient
from vllmfront.engine.client._config import EngineClientConfig
from vllmfront.engine.client._info import ClientSnapshot, EngineInfo, RankSnapshot
from vllmfront.engine.client._open import open_engine_client
from vllmfront.engine.client._state import EngineState
from vllmfront.engine.client._stream import RequestStream

__all__ = [
    "ClientSnapshot",
    "EngineClient",
    "EngineClientConfig",
    "EngineInfo",
    "EngineState",
    "RankSnapshot",
    "RequestStream",
    "open_engine_client",
]
