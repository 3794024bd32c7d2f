"""Operator routes behind the HTTP server's router.

Their app is built on libraries that take as long to import as everything else together, and none
of its routes is needed to be up. So they are imported when the first of these routes is asked for,
or a moment later.
"""

import logging
import sys
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import cast

import trio

from vllmfront.api.http import (
    AsgiApp,
    Handler,
    HttpRequest,
    ResponseWriter,
    Router,
    open_asgi_bridge,
)
from vllmfront.api.metrics import HttpMetrics
from vllmfront.api.routes._facts import ServerFacts
from vllmfront.api.routes._not_served import NOT_SERVED
from vllmfront.api.routes._probes import Probes

_LOGGER = logging.getLogger(__name__)

INFORMATION = (
    ("GET", "/load"),
    ("GET", "/metrics"),
    ("GET", "/supervisor"),
    ("GET", "/v1/models"),
    ("GET", "/version"),
)
"""Routes of the app that answer."""

FIXED_ROUTES = (
    *INFORMATION,
    *((each.method, each.path) for each in NOT_SERVED if "<" not in each.path),
)
"""Routes of the app in the form that the router knows: those with a variable part are left out."""

_RETRY = 0.5
"""Seconds between two tries to import it."""

_SETTLING = 1.0
"""Seconds after which the app is loaded, asked for or not: the program is up then, and the first
scrape need not wait for an import."""


@asynccontextmanager
async def open_operator_router(
    facts: ServerFacts,
    http_metrics: HttpMetrics,
    *,
    at_once: bool = False,
) -> AsyncGenerator[Router, None]:
    """Run the operator app for as long as the block runs; yield a router that leads to it.

    With *at_once* the app is there by then. Clients that take all descriptors cannot delay it.

    Other routes may be added to the router. Paths with a variable part reach the app through the
    router's fallback, which answers 404 and 405 for what it does not know.
    """
    late = _LateApp(facts, http_metrics)
    nowhere = Router()

    def fallback(request: HttpRequest, response: ResponseWriter, /) -> Awaitable[None]:
        # The app would drop the slashes in front, and answer for a path that is another one.
        handler = nowhere if request.path.startswith("//") else late
        return handler(request, response)

    router = Router(fallback=fallback)
    for method, path, handler in Probes(facts):
        router.add(method, path, handler)
    for method, path in FIXED_ROUTES:
        router.add(method, path, late)
    async with trio.open_nursery() as nursery:
        if at_once:
            late.want()
        if at_once or "quart" in sys.modules:
            await nursery.start(late.serve)
        else:
            nursery.start_soon(late.serve)  # noqa: ASYNC113 (requests wait for it)
        yield router
        nursery.cancel_scope.cancel(reason="the server has ended")


class _LateApp:
    """A handler that passes requests to the app, once that is there; they wait until then."""

    def __init__(self, facts: ServerFacts, http_metrics: HttpMetrics) -> None:
        self._facts = facts
        self._http_metrics = http_metrics
        self._wanted = trio.Event()
        self._loaded = trio.Event()
        self._bridge: Handler | None = None

    def __call__(self, request: HttpRequest, response: ResponseWriter, /) -> Awaitable[None]:
        if self._bridge is not None:
            return self._bridge(request, response)
        return self._wait(request, response)

    def want(self) -> None:
        """Have it loaded now."""
        self._wanted.set()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the app when it is time, and run it until cancelled."""
        if "quart" not in sys.modules:
            with trio.move_on_after(_SETTLING):
                await self._wanted.wait()
        # Also where another server of this process is at it: in a thread, it waits for that.
        await _import_in_time()
        from vllmfront.api.routes._app import build_operator_app

        app = build_operator_app(self._facts, self._http_metrics)
        async with open_asgi_bridge(cast("AsgiApp", app)) as self._bridge:
            self._loaded.set()
            task_status.started()
            await trio.sleep_forever()

    async def _wait(self, request: HttpRequest, response: ResponseWriter) -> None:
        self.want()
        await self._loaded.wait()
        assert self._bridge is not None
        await self._bridge(request, response)


async def _import_in_time() -> None:
    """Import the app's module in a thread; probes are answered meanwhile.

    Clients may have taken all descriptors by then: that ends nothing, it is tried again.
    """
    told = False
    while True:
        try:
            await trio.to_thread.run_sync(_import_app, abandon_on_cancel=True)
        except OSError as error:
            if not told:
                told = True
                _LOGGER.warning("Operator routes have to wait, and are tried again: %s", error)
            await trio.sleep(_RETRY)
        else:
            return


def _import_app() -> None:
    import vllmfront.api.routes._app  # noqa: F401 - a module's first import is what takes long
