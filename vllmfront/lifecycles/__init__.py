"""The supervision tree of each deployment."""

from vllmfront.lifecycles._config import (
    ChatConfig,
    CorsConfig,
    DecodingConfig,
    EngineConfig,
    ListenConfig,
    ModelConfig,
    ServeConfig,
    ServerConfig,
    TlsConfig,
)

__all__ = [
    "ChatConfig",
    "CorsConfig",
    "DecodingConfig",
    "EngineConfig",
    "ListenConfig",
    "ModelConfig",
    "ServeConfig",
    "ServerConfig",
    "TlsConfig",
]
