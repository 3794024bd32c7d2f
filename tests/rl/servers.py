"""Servers that a trainer updates, as far as it sees them: a pause, a transfer, weights."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import httpx


@attrs.define
class FakeServer:
    """The state of one server; its routes refuse what a real one refuses."""

    weights: list[str] = attrs.field(factory=lambda: ["old"])
    version: str = "v0"
    owner: str | None = None
    lease: str | None = None
    initialised: bool = False
    updating: bool = False
    calls: list[str] = attrs.field(factory=list)
    owners: list[str | None] = attrs.field(factory=list)
    """Who each call was from, where it says so."""

    faults: dict[str, Callable[[], httpx.Response]] = attrs.field(factory=dict)
    """What the next call of a route gets instead of being done."""

    deaf: bool = False
    busy: Callable[[], bool] = attrs.field(default=lambda: False)
    """Whether requests still run that a pause waits for."""

    last_update: dict[str, Any] = attrs.field(factory=dict)

    @property
    def serves(self) -> tuple[list[str], str]:
        """What it generates with; only while it is not paused."""
        assert self.owner is None
        return self.weights, self.version

    async def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.calls.append(path)
        self.owners.append(request.url.params.get("owner"))
        if self.deaf:
            raise httpx.ReadTimeout("deaf", request=request)
        fault = self.faults.pop(path, None)
        if fault is not None:
            return fault()
        while path == "/pause" and self.busy():  # noqa: ASYNC110 - no event for it
            await anyio.sleep(0.005)
        body = json.loads(request.content or b"{}")
        return self._do(path, request.url.params, body)

    def _do(self, path: str, params: httpx.QueryParams, body: dict[str, Any]) -> httpx.Response:
        match path:
            case "/pause":
                return self._pause(params)
            case "/renew_pause":
                if self.owner != params["owner"]:
                    return conflict("paused" if self.owner else "running", holder=self.owner)
                self.lease = params["lease"]
            case "/resume":
                if self.owner not in {None, params["owner"]}:
                    return conflict("paused", holder=self.owner)
                self.owner = None
            case "/weight_info":
                return httpx.Response(200, json={"weight_version": self.version})
            case "/init_weight_transfer_engine":
                self.initialised = True
            case "/shutdown_weight_transfer_engine":
                self.initialised = self.updating = False
            case "/start_weight_update" | "/start_draft_weight_update":
                if not self.initialised or self.updating:
                    return conflict("updating" if self.updating else "uninitialised")
                self.updating = True
            case "/update_weights":
                if not self.updating:
                    return conflict("initialised")
                self.last_update = body["update_info"]
                self.weights = [*self.weights, self.last_update["piece"]]
            case "/finish_weight_update":
                self.updating = False
                self.version = body.get("weight_version", self.version)
            case _:
                return httpx.Response(404, json={"error": {"message": path}})
        return httpx.Response(200, json={"message": "done"})

    def _pause(self, params: httpx.QueryParams) -> httpx.Response:
        if self.owner not in {None, params["owner"]}:
            return conflict("paused", holder=self.owner, since=1.5)
        self.owner, self.lease = params["owner"], params.get("lease")
        return httpx.Response(200, json={"status": "paused"})


def conflict(state: str, **more: object) -> httpx.Response:
    error = {"message": f"it is {state}", "type": "ConflictError", "state": state, **more}
    return httpx.Response(409, json={"error": error})


def failed(status: int = 500, **more: object) -> Callable[[], httpx.Response]:
    headers = {"retry-after": "0"} if status == 503 else {}
    return lambda: httpx.Response(
        status, json={"error": {"message": "worker 1 says no", **more}}, headers=headers
    )


def lost() -> httpx.Response:
    raise httpx.ReadTimeout("the answer got lost")


def refused() -> httpx.Response:
    raise httpx.ConnectError("nobody listens")


def transport(servers: dict[str, FakeServer]) -> httpx.MockTransport:
    """Return what carries requests to the server of that host name."""
    return httpx.MockTransport(lambda request: servers[request.url.host].answer(request))
