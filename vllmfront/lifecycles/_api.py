"""The HTTP side: up from the first moment, honest about the rest, and the last to say goodbye."""

import functools
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.api.developer import DeveloperRoutes
from vllmfront.api.edge import ADMIN_PATHS, AccessControl, CorsPolicy, Edge, Hidden
from vllmfront.api.http import (
    Handler,
    HttpConfig,
    HttpServer,
    Listener,
    Router,
    TlsConfig,
    duplicate_listeners,
    serve_http,
)
from vllmfront.api.lora import LoraRoutes
from vllmfront.api.metrics import HttpMetrics
from vllmfront.api.openai import GateLimits, OpenAiRoutes, ServiceCounts
from vllmfront.api.routes import open_operator_router
from vllmfront.control import ControlPlane
from vllmfront.engine import EngineClient, TerminalCause
from vllmfront.environment import whole_number
from vllmfront.lifecycles._config import ServeConfig, ServerConfig
from vllmfront.lifecycles._facts import Facts
from vllmfront.lifecycles._model import DrainingSlot, served_names
from vllmfront.lifecycles._one_error import one_error
from vllmfront.lifecycles._shown_config import shown_config
from vllmfront.supervisor import Reloads, Shutdown, SupervisorSnapshot, wait_any

FLUSH_BUDGET = 1.0
"""Seconds for last frames and refusals to reach clients that read."""


@attrs.frozen(kw_only=True)
class ApiServer:
    """Serves HTTP on listeners that somebody else owns."""

    config: ServeConfig
    listeners: Sequence[Listener]
    client: EngineClient
    control: ControlPlane
    slot: DrainingSlot
    shutdown: Shutdown
    reloads: Reloads
    """Where the certificates can be read anew."""

    refuse: Callable[[], None]
    """Called when nobody will answer any more: whoever owns the listeners closes them."""

    on_server: Callable[[HttpServer], None]
    """Called with the server once it accepts clients."""

    tree: Callable[[], SupervisorSnapshot]
    """Shows the supervisor above."""

    metrics: HttpMetrics = attrs.field(factory=HttpMetrics)
    service: ServiceCounts | None = None
    """Counts what other processes of this server let in, if there are any."""

    around_routes: Callable[[Handler], Handler] = lambda routes: routes
    """Stands between the edge and all routes."""

    @functools.cached_property
    def facts(self) -> Facts:
        """What operators may ask about."""
        return Facts(
            config=self.config,
            client=self.client,
            slot=self.slot,
            shutdown=self.shutdown,
            tree=self.tree,
            started=trio.current_time(),
        )

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child: ready when connections are answered; drains when stopped.

        Raises:
            ConfigurationError: Certificates are unusable.
        """
        http = http_config(self.config.server, os.environ)
        with one_error(), duplicate_listeners(self.listeners) as listeners:
            async with (
                self._open_handler() as (handler, routes),
                trio.open_nursery() as nursery,
            ):
                self.metrics.operations = {
                    "rl_weight_update": self.control.weights.times,
                    "sleep_mode": self.control.sleep_times,
                }
                await nursery.start(routes.serve_timers, name="stream timers")
                server = await nursery.start(serve_http, listeners, handler, http)
                self.metrics.server = server.statistics
                self.on_server(server)
                reload = functools.partial(reload_certificates, server, http.tls)
                with self.client.pushes_observed_by(server.writes):
                    with self.reloads.offering("certificates", reload):
                        task_status.started()
                        await stop.wait()
                    await self._drain(server)
                nursery.cancel_scope.cancel(reason="drained")

    @asynccontextmanager
    async def _open_handler(self) -> AsyncGenerator[tuple[Handler, OpenAiRoutes]]:
        """Put all routes behind one handler."""
        server = self.config.server
        async with self.open_routes() as (router, routes):
            # Where operators have a listener of their own, only that leads to what they may do.
            shown = Hidden(router, () if self.config.listen.admin is None else ADMIN_PATHS)
            edge = Edge(
                handler=self.around_routes(shown),
                allowed=shown.allowed,
                access=AccessControl(server.api_keys, server.admin_api_keys),
                cors=CorsPolicy(
                    allowed_origins=server.cors.origins,
                    allowed_methods=server.cors.methods,
                    allowed_headers=server.cors.headers,
                    allow_credentials=server.cors.credentials,
                ),
                metrics=self.metrics,
                request_id_headers=server.request_id_headers,
            )
            yield edge, routes

    @asynccontextmanager
    async def open_routes(self) -> AsyncGenerator[tuple[Router, OpenAiRoutes]]:
        """Open all routes for the block, without what surrounds them."""
        requests = self.config.requests
        routes = OpenAiRoutes(
            self.slot,
            limits=GateLimits(
                max_in_flight=requests.max_queued,
                max_queued_tokens=requests.max_queued_tokens,
                max_loop_lag=requests.max_loop_lag,
            ),
            metrics=self.metrics.inference,
            keep_alive_interval=self.config.server.sse_keep_alive_interval,
            service=self.service,
        )
        async with open_operator_router(self.facts, self.metrics) as router:
            for method, path, handler in (*routes, *admin_routes(self.config, self.control)):
                router.add(method, path, handler)
            yield router, routes

    async def _drain(self, server: HttpServer) -> None:
        """Refuse new work, let the running one go on until the deadline, then end it in words."""
        self.slot.close()
        server.begin_drain(keep_listening=True)
        if self.shutdown.requested.is_set():
            with trio.move_on_at(self.shutdown.deadline):
                await wait_any(server.wait_drained, self.shutdown.hurried.wait)
        self.client.abort_all(TerminalCause.SHUTDOWN)
        with trio.move_on_after(FLUSH_BUDGET):
            await server.wait_drained()
        # From here on nobody would answer: closed listeners refuse, open ones keep clients waiting.
        server.begin_drain()
        self.refuse()
        server.abort_connections()


def admin_routes(config: ServeConfig, control: ControlPlane) -> Iterator[tuple[str, str, Handler]]:
    """Yield method, path and handler of what changes the engines' state, as far as it is open."""
    yield from LoraRoutes(control.client.adapters, served_names(config), os.environ)
    yield from DeveloperRoutes(
        control,
        os.environ,
        configuration=functools.partial(shown_config, config),
        profiler=config.control.profiler is not None,
    )


def reload_certificates(server: HttpServer, tls: TlsConfig | None) -> str:
    """Read the certificates anew, for connections to come; return what was done, for the log.

    Raises:
        ConfigurationError: They are unusable; the old ones stay in use.
    """
    if tls is None:
        return "TLS is off, there are no certificates"
    server.reload_tls()
    files = ", ".join(file for file in (tls.certfile, tls.keyfile, tls.ca_certs) if file)
    return f"reloaded certificates for connections to come: {files}"


def http_config(server: ServerConfig, environ: Mapping[str, str]) -> HttpConfig:
    """Make the HTTP server's configuration.

    Raises:
        ConfigurationError: An environment variable makes no sense.
    """
    tls = None
    if server.tls.certfile is not None:
        tls = TlsConfig(
            certfile=server.tls.certfile,
            keyfile=server.tls.keyfile,
            ca_certs=server.tls.ca_certs,
            cert_reqs=server.tls.cert_reqs,
            ciphers=server.tls.ciphers,
        )
    config = HttpConfig(
        keep_alive_timeout=server.keep_alive_timeout, send_timeout=server.send_timeout, tls=tls
    )
    limit = whole_number(environ, "VLLM_HTTP_MAX_REQUEST_BODY_SIZE", config.max_body_bytes)
    return attrs.evolve(config, max_body_bytes=limit)
