"""The supervision tree of each deployment."""

from vllmfront.lifecycles._config import (
    AdapterConfig,
    ChatConfig,
    ControlFlags,
    CorsConfig,
    DecodingConfig,
    ListenConfig,
    ModelConfig,
    RequestsConfig,
    ServeConfig,
    ServerConfig,
    TlsConfig,
)
from vllmfront.lifecycles._engine_config import EngineConfig, RestartConfig, RestartIntensity
from vllmfront.lifecycles._run import run_headless, run_serve

__all__ = [
    "AdapterConfig",
    "ChatConfig",
    "ControlFlags",
    "CorsConfig",
    "DecodingConfig",
    "EngineConfig",
    "ListenConfig",
    "ModelConfig",
    "RequestsConfig",
    "RestartConfig",
    "RestartIntensity",
    "ServeConfig",
    "ServerConfig",
    "TlsConfig",
    "run_headless",
    "run_serve",
]
