"""Caches, and calls of the engines' workers by name."""

from collections.abc import Iterator
from typing import Any

import msgspec

from vllmfront.api.developer._question import Query
from vllmfront.api.developer._route import Answer
from vllmfront.api.http import HttpRequest
from vllmfront.api.openai import Body
from vllmfront.control import ControlPlane
from vllmfront.errors import RequestRejected


class CollectiveRpcRequest(msgspec.Struct, kw_only=True, frozen=True):
    method: str | None = None
    timeout: float | None = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


_CALL = Body(CollectiveRpcRequest)


class EngineRoutes:
    """Iterate for method, path and what answers it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._calls = plane.calls

    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        yield "POST", "/reset_prefix_cache", self.reset_prefix_cache
        yield "POST", "/reset_mm_cache", self.reset_mm_cache
        yield "POST", "/reset_encoder_cache", self.reset_encoder_cache
        yield "POST", "/collective_rpc", self.call_workers

    async def reset_prefix_cache(self, request: HttpRequest) -> Any:
        """Forget cached blocks; no success where an engine has requests that use them."""
        query = Query(request)
        done = await self._calls.order(
            "reset_prefix_cache",
            "reset_prefix_cache",
            query.flag("reset_running_requests", default=False),
            query.flag("reset_external", default=False),
        )
        return {"success": all(done)}

    async def reset_mm_cache(self, _request: HttpRequest) -> Any:
        await self._calls.order("reset_mm_cache", "reset_mm_cache")

    async def reset_encoder_cache(self, _request: HttpRequest) -> Any:
        await self._calls.order("reset_encoder_cache", "reset_encoder_cache")

    async def call_workers(self, request: HttpRequest) -> Any:
        """Call a method of every worker; the results of all engines stand in one list."""
        body = _CALL.decode(request)
        if body.method is None:
            raise RequestRejected("Missing 'method' in request body", param="method")
        patience = max(self._calls.timeout, body.timeout or 0.0)
        results = await self._calls.order(
            *("collective_rpc", "collective_rpc"),
            *(body.method, body.timeout, body.args, body.kwargs),
            seconds=patience,
        )
        return {"results": [one for engine in results for one in engine or ()]}
