"""The routes that are not hot, as one Quart app."""

import time
from typing import Any

import msgspec
import trio
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed

import vllmfront
from vllmfront.api._errors import answer_to
from vllmfront.api.metrics import HttpMetrics, expose
from vllmfront.api.routes._facts import ServerFacts
from vllmfront.api.routes._not_served import NOT_SERVED, NotServed
from vllmfront.engine import LoraRequest
from vllmfront.errors import FeatureNotServed

_encode = msgspec.json.Encoder().encode


def build_operator_app(facts: ServerFacts, http_metrics: HttpMetrics) -> QuartTrio:
    app = QuartTrio("vllmfront", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = None  # the HTTP server has limited the body already
    app.url_map.merge_slashes = False  # other spellings of a path are other paths
    _add_information(app, facts, http_metrics)
    for route in NOT_SERVED:
        _add_not_served(app, route)
    app.register_error_handler(HTTPException, _plain_error)
    app.register_error_handler(500, _plain_error)
    return app


def _add_information(app: QuartTrio, facts: ServerFacts, http_metrics: HttpMetrics) -> None:
    @app.get("/load")
    async def load() -> Response:
        return _json({"server_load": facts.load})

    @app.get("/supervisor")
    async def supervisor() -> Response:
        return _json(facts.supervision().json_fields(trio.current_time(), time.time()))

    @app.get("/version")
    async def version() -> Response:
        return _json({"version": facts.engine_version, "vllmfront_version": vllmfront.__version__})

    @app.get("/v1/models")
    async def models() -> Response:
        now = int(time.time())
        served = [_model(facts, name, now) for name in facts.served_model_names]
        adapters = [_adapter(facts, lora, now) for lora in facts.adapters]
        return _json({"object": "list", "data": served + adapters})

    @app.get("/metrics")
    async def metrics() -> Response:
        exposition = expose(
            facts.metrics(),
            http_metrics,
            model_name=facts.served_model_names[0],
            accept=request.headers.get("accept", ""),
        )
        return Response(exposition.body, content_type=exposition.content_type)


def _model(facts: ServerFacts, name: str, now: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": now,
        "owned_by": "vllmfront",
        "root": facts.model_root,
        "parent": None,
        "max_model_len": facts.max_model_len,
    }


def _adapter(facts: ServerFacts, lora: LoraRequest, now: int) -> dict[str, Any]:
    parent = lora.base_model_name or facts.served_model_names[0]
    return {
        **_model(facts, lora.name, now),
        "root": lora.path,
        "parent": parent,
        "max_model_len": None,
    }


def _add_not_served(app: QuartTrio, route: NotServed) -> None:
    error = answer_to(
        FeatureNotServed(
            f"{route.method} {route.path} belongs to {route.feature}, which this build of "
            "vllmfront does not serve yet. Use vLLM's Python server for it."
        )
    )

    async def refuse(**_: str) -> Response:
        return Response(error.json(), error.status, content_type="application/json")

    app.add_url_rule(route.path, f"{route.method} {route.path}", refuse, methods=[route.method])


async def _plain_error(error: Exception) -> Response:
    """Answer as the peer does: no body, and ``Allow`` where only the method was wrong."""
    status = (error.code or 500) if isinstance(error, HTTPException) else 500
    response = _empty(status)
    if isinstance(error, MethodNotAllowed):
        methods = sorted(set(error.valid_methods or ()) - {"OPTIONS"})
        response.headers["allow"] = ",".join(methods)
    return response


def _empty(status: int) -> Response:
    response = Response(b"", status)
    del response.headers["content-type"]
    return response


def _json(value: dict[str, Any]) -> Response:
    return Response(_encode(value), content_type="application/json")
