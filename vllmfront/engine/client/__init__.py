"""The client of one or more engines: streams of requests, utility calls, and their state."""

from vllmfront.engine.client._client import EngineClient
from vllmfront.engine.client._config import Deployment, EngineClientConfig
from vllmfront.engine.client._open import open_engine_client
from vllmfront.engine.client.entrance import EngineLegacy, Inheritance, Succession
from vllmfront.engine.client.membership import (
    ClientSnapshot,
    EngineInfo,
    EngineState,
    EngineView,
    RankSnapshot,
    RankState,
    RankView,
)
from vllmfront.engine.client.orders import Outcome
from vllmfront.engine.client.requests import RequestStream

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
    "RankSnapshot",
    "RankState",
    "RankView",
    "RequestStream",
    "Succession",
    "open_engine_client",
]
