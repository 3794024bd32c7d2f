"""A listener for operators alone, which answers whatever clients do to the others.

It has connections, descriptors and a backlog of its own, and its requests pass no gate. It is up
before the other listeners and ends after them.
"""

import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.api.edge import AccessControl, CorsPolicy, Edge
from vllmfront.api.http import (
    Handler,
    HttpServer,
    ListenConfig,
    Listener,
    duplicate_listeners,
    open_listeners,
    serve_http,
)
from vllmfront.api.metrics import HttpMetrics
from vllmfront.api.routes import open_operator_router
from vllmfront.control import ControlPlane
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._api import admin_routes, http_config
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._facts import Facts
from vllmfront.lifecycles._one_error import one_error

_LOGGER = logging.getLogger(__name__)

MARK = "admin "
"""What the names of such listeners begin with, so that the next generation knows them."""

RESERVED_DESCRIPTORS = 32
"""As many operators get in when clients have taken all descriptors."""


@attrs.frozen(kw_only=True)
class AdminServer:
    """Answers operators; the body of a child."""

    config: ServeConfig
    listeners: Sequence[Listener]
    control: ControlPlane
    facts: Facts
    metrics: HttpMetrics
    """Of the server for clients, which is shown here as well."""

    on_server: Callable[[HttpServer], None]
    """Called with the server once it accepts operators."""

    around_routes: Callable[[Handler], Handler] = lambda routes: routes
    """Stands between the edge and all routes."""

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Answer until stopped.

        Raises:
            ConfigurationError: Certificates are unusable.
        """
        http = attrs.evolve(
            http_config(self.config.server, os.environ),
            reserved_descriptors=RESERVED_DESCRIPTORS,
        )
        with one_error(), duplicate_listeners(self.listeners) as listeners:
            async with self._open_handler() as handler, trio.open_nursery() as nursery:
                self.on_server(await nursery.start(serve_http, listeners, handler, http))
                task_status.started()
                await stop.wait()
                nursery.cancel_scope.cancel(reason="the server has ended")

    @asynccontextmanager
    async def _open_handler(self) -> AsyncGenerator[Handler]:
        server = self.config.server
        # Before clients can come and take what an import needs.
        opening = open_operator_router(self.facts, self.metrics, at_once=True)
        async with opening as router:
            for method, path, handler in admin_routes(self.config, self.control):
                router.add(method, path, handler)
            yield Edge(
                handler=self.around_routes(router),
                allowed=router.allowed,
                access=AccessControl(server.admin_api_keys or server.api_keys),
                cors=CorsPolicy(),
                metrics=HttpMetrics(),
            )


@asynccontextmanager
async def open_admin_listeners(
    address: str | None, inherited: Sequence[Listener]
) -> AsyncGenerator[Sequence[Listener]]:
    """Listen for operators at *address* for as long as the block runs; None: nowhere.

    Args:
        address: ``HOST:PORT``, or the path of a Unix socket.
        inherited: Those of the generation before us, if there was one.

    Raises:
        ConfigurationError: The address is unusable.
    """
    if address is None or inherited:
        yield inherited
        return
    async with open_listeners(_listen_config(address)) as listeners:
        for listener in listeners:
            listener.name = MARK + listener.name
            _LOGGER.info("operators are answered at %s", listener.name.removeprefix(MARK))
        yield listeners


def is_for_operators(listener: Listener) -> bool:
    """Tell whether *listener* is one of ``open_admin_listeners``."""
    return listener.name.startswith(MARK)


def _listen_config(address: str) -> ListenConfig:
    if "/" in address:
        return ListenConfig(uds=address)
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port[:9]) > 65535:  # noqa: PLR2004
        raise ConfigurationError(
            f"--admin-listen {address}: expected HOST:PORT, or a path with a slash"
        )
    return ListenConfig(host=host.removeprefix("[").removesuffix("]"), port=int(port))
