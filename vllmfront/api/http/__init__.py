"""HTTP/1.1 on Trio: connections, listeners, routing, and bridges to and from ASGI."""

from vllmfront.api.http._config import HttpConfig, TlsConfig
from vllmfront.api.http._limits import raise_descriptor_limit
from vllmfront.api.http._listeners import (
    ListenConfig,
    Listener,
    adopt_listener,
    open_listeners,
    take_systemd_descriptors,
)
from vllmfront.api.http._message import (
    AsgiApp,
    ConnectionState,
    Handler,
    Headers,
    HttpRequest,
    ResponseWriter,
)
from vllmfront.api.http._server import HttpServer, HttpStatistics, serve_http

__all__ = [
    "AsgiApp",
    "ConnectionState",
    "Handler",
    "Headers",
    "HttpConfig",
    "HttpRequest",
    "HttpServer",
    "HttpStatistics",
    "ListenConfig",
    "Listener",
    "ResponseWriter",
    "TlsConfig",
    "adopt_listener",
    "open_listeners",
    "raise_descriptor_limit",
    "serve_http",
    "take_systemd_descriptors",
]
