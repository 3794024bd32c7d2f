"""The outermost layer: what happens to every request, whatever its route."""

import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial

import attrs

from vllmfront.api.edge._access import AccessControl
from vllmfront.api.edge._cors import CorsPolicy
from vllmfront.api.http import ANSWERED, Exchange, Handler, HttpRequest, ResponseWriter
from vllmfront.api.metrics import UNCOUNTED_PATHS, HttpMetrics

UNKNOWN_HANDLER = "none"
"""The metric label of paths that no route has: it bounds the number of series."""


@attrs.define(kw_only=True, eq=False)
class Edge:
    """A handler around all others: request ids, access, CORS, ``OPTIONS`` and metrics.

    Refused keys and preflight answers count in no metric.
    """

    handler: Handler
    allowed: Callable[[str], bytes | None]
    """The value of ``Allow`` for a path, None where no route is."""

    access: AccessControl
    cors: CorsPolicy
    metrics: HttpMetrics
    request_id_headers: bool = False

    def __call__(self, request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
        started = time.perf_counter()
        if self.request_id_headers:
            request_id = request.header(b"x-request-id") or secrets.token_hex(16).encode()
            response.add_headers(((b"x-request-id", request_id),))
        if not self.access.allows(request):
            response.respond(401, b'{"error":"Unauthorized"}')
            return ANSWERED
        cors = self.cors.headers(request)
        if cors:
            response.add_headers(cors)
        if request.method == "OPTIONS":
            self._answer_options(request, response)
            return ANSWERED
        answering = self.handler(request, response)
        if request.path in UNCOUNTED_PATHS:
            return answering
        if isinstance(answering, Exchange):
            answering.on_end(partial(self._count, request, response, started))
            return answering
        return self._run(answering, request, response, started)

    async def _run(
        self,
        answering: Awaitable[None],
        request: HttpRequest,
        response: ResponseWriter,
        started: float,
    ) -> None:
        try:
            await answering
        finally:
            self._count(request, response, started)

    def _answer_options(self, request: HttpRequest, response: ResponseWriter) -> None:
        allow = self.allowed(request.path)
        headers = () if allow is None else ((b"allow", allow),)
        response.respond(200, b"", content_type=b"", headers=headers)

    def _count(self, request: HttpRequest, response: ResponseWriter, started: float) -> None:
        if not response.started:
            return
        known = self.allowed(request.path) is not None
        handler = request.path if known else UNKNOWN_HANDLER
        seconds = response.head_time - started
        self.metrics.observe(request.method, handler, response.status, seconds)
