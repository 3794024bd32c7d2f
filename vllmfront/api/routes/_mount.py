"""Operator routes behind the HTTP server's router."""

from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import cast

from vllmfront.api.http import (
    AsgiApp,
    HttpRequest,
    ResponseWriter,
    Router,
    open_asgi_bridge,
)
from vllmfront.api.metrics import HttpMetrics
from vllmfront.api.routes._app import build_operator_app
from vllmfront.api.routes._facts import ServerFacts
from vllmfront.api.routes._probes import Probes


@asynccontextmanager
async def open_operator_router(
    facts: ServerFacts, http_metrics: HttpMetrics, environ: Mapping[str, str]
) -> AsyncGenerator[Router, None]:
    """Run the operator app for as long as the block runs; yield a router that leads to it.

    Other routes may be added to the router. Paths with a variable part reach the app through the
    router's fallback, which answers 404 and 405 for what it does not know.
    """
    app = build_operator_app(facts, http_metrics, environ)
    async with open_asgi_bridge(cast("AsgiApp", app)) as bridge:
        nowhere = Router()

        def fallback(request: HttpRequest, response: ResponseWriter, /) -> Awaitable[None]:
            # The app would drop the slashes in front, and answer for a path that is another one.
            handler = nowhere if request.path.startswith("//") else bridge
            return handler(request, response)

        router = Router(fallback=fallback)
        for method, path, handler in Probes(facts):
            router.add(method, path, handler)
        for rule in app.url_map.iter_rules():
            if rule.arguments:
                continue
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                router.add(method, rule.rule, bridge)
        yield router
