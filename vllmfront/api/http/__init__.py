"""HTTP/1.1 on Trio: connections, listeners, routing, and bridges to and from ASGI."""

from vllmfront.api.http._asgi_app import handler_as_asgi
from vllmfront.api.http._asgi_bridge import AsgiBridge, open_asgi_bridge
from vllmfront.api.http._config import HttpConfig, TlsConfig
from vllmfront.api.http._exchange import ANSWERED, Exchange
from vllmfront.api.http._handed import HandedListener
from vllmfront.api.http._inherited import adopt_listener, take_systemd_descriptors
from vllmfront.api.http._limits import raise_descriptor_limit
from vllmfront.api.http._listener import Listener, duplicate_listeners
from vllmfront.api.http._listeners import ListenConfig, open_listeners
from vllmfront.api.http._message import (
    CLIENT_GONE,
    CLIENT_STALLED,
    SHUTDOWN,
    AsgiApp,
    ConnectionState,
    Handler,
    Headers,
    HttpRequest,
    ResponseWriter,
)
from vllmfront.api.http._router import Router
from vllmfront.api.http._server import HttpServer, HttpStatistics, serve_http

__all__ = [
    "ANSWERED",
    "CLIENT_GONE",
    "CLIENT_STALLED",
    "SHUTDOWN",
    "AsgiApp",
    "AsgiBridge",
    "ConnectionState",
    "Exchange",
    "HandedListener",
    "Handler",
    "Headers",
    "HttpConfig",
    "HttpRequest",
    "HttpServer",
    "HttpStatistics",
    "ListenConfig",
    "Listener",
    "ResponseWriter",
    "Router",
    "TlsConfig",
    "adopt_listener",
    "duplicate_listeners",
    "handler_as_asgi",
    "open_asgi_bridge",
    "open_listeners",
    "raise_descriptor_limit",
    "serve_http",
    "take_systemd_descriptors",
]
