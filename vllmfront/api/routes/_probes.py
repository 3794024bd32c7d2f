"""Probes: answered from memory, by the HTTP server's own handlers, however busy the rest is."""

import time
from collections.abc import Iterator

import msgspec
import trio

from vllmfront.api.http import Handler, Headers, HttpRequest, ResponseWriter
from vllmfront.api.routes._facts import ServerFacts
from vllmfront.api.routes._health import HealthReport, whole_seconds

_encode = msgspec.json.Encoder().encode

_OK = 200
_UNAVAILABLE = 503


class Probes:
    """Whether the server lives, and whether it serves; iterate for method, path and handler.

    ``/live`` answers 200 as long as the event loop turns. ``/ready`` answers 200 while requests
    are served, else 503. ``/health`` and ``/ping`` have the statuses of ``/ready``, but 200 also
    while somebody holds generation back, and no body, unless the client names
    ``application/json`` as what it accepts.
    """

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    def __iter__(self) -> Iterator[tuple[str, str, Handler]]:
        yield "GET", "/live", self._live
        yield "GET", "/ready", self._ready
        yield "GET", "/health", self._health
        yield "GET", "/ping", self._health
        yield "POST", "/ping", self._health

    async def _live(self, _request: HttpRequest, response: ResponseWriter) -> None:
        response.respond(_OK, _body(self._facts.health()))

    async def _ready(self, _request: HttpRequest, response: ResponseWriter) -> None:
        report = self._facts.health()
        headers: Headers = ()
        if not report.ready and report.retry_after is not None:
            headers = ((b"retry-after", b"%d" % whole_seconds(report.retry_after)),)
        response.respond(_status(report), _body(report), headers=headers)

    async def _health(self, request: HttpRequest, response: ResponseWriter) -> None:
        report = self._facts.health()
        status = _OK if report.healthy else _UNAVAILABLE
        if b"application/json" in (request.header(b"accept") or b""):
            response.respond(status, _body(report))
        else:
            response.respond(status, b"", content_type=b"")


def _status(report: HealthReport) -> int:
    return _OK if report.ready else _UNAVAILABLE


def _body(report: HealthReport) -> bytes:
    return _encode(report.json_fields(trio.current_time(), time.time()))
