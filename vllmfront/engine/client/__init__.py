"""The client of one or more engines: streams of requests, utility calls, and their state."""

from vllmfront.engine.client._client import EngineClient
from vllmfront.engine.client._client_sockets import Inheritance
from vllmfront.engine.client._config import Deployment, EngineClientConfig
from vllmfront.engine.client._info import ClientSnapshot, EngineInfo, RankSnapshot
from vllmfront.engine.client._membership import RankSetup
from vllmfront.engine.client._open import open_engine_client
from vllmfront.engine.client._state import EngineState, RankState
from vllmfront.engine.client._stream import RequestStream
from vllmfront.engine.client._succession import EngineLegacy, Succession
from vllmfront.engine.client._utility import Outcome
from vllmfront.engine.client._view import EngineView, RankView
from vllmfront.engine.client._worker_slots import WorkerSlots

__all__ = [
    "ClientSnapshot",
    "Deployment",
    "EngineClient",
    "EngineClientConfig",
    "EngineInfo",
    "EngineLegacy",
    "EngineState",
    "EngineView",
    "Inheritance",
    "Outcome",
    "RankSetup",
    "RankSnapshot",
    "RankState",
    "RankView",
    "RequestStream",
    "Succession",
    "WorkerSlots",
    "open_engine_client",
]
