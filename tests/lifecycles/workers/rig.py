"""A frontend of several processes: the main one is the test's own."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import trio

from tests.lifecycles.rig import BUDGET, Frontend, config, serving, simulated_engine
from vllmfront.lifecycles import RequestsConfig, ServeConfig, ServerConfig

MANY = httpx.Limits(max_connections=1)


def settings(
    workers: int | None = 2, *, requests: RequestsConfig | None = None, **server: Any
) -> ServeConfig:
    """Make a configuration of several workers for external engines."""
    base = config(
        server=ServerConfig(served_model_names=("tiny",), api_server_count=workers, **server)
    )
    return base if requests is None else attrs.evolve(base, requests=requests)


@asynccontextmanager
async def workers_serving(
    wanted: ServeConfig | None = None, **engine: Any
) -> AsyncGenerator[Frontend]:
    """Serve with an engine until the block ends; all workers are up in it."""
    async with (
        serving(wanted or settings(), budget=2 * BUDGET) as frontend,
        simulated_engine(frontend, **engine),
    ):
        await wait_workers(frontend)
        yield frontend


async def inside(frontend: Frontend) -> dict[str, Any]:
    """Return what ``/supervisor`` says."""
    body: dict[str, Any] = (await ask(frontend, "/supervisor")).json()
    return body


async def ask(frontend: Frontend, path: str) -> httpx.Response:
    """Ask on a connection of its own, and again where the worker died that had it."""
    while True:
        async with client_of(frontend) as client:
            try:
                return await client.get(path)
            except httpx.TransportError:
                if frontend.ended.is_set():
                    raise


async def wait_workers(
    frontend: Frontend, count: int = 2, but: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Wait until *count* workers serve, in other processes than those; return their pids."""
    while True:
        workers = (await inside(frontend))["workers"]
        pids = {one["worker"]: one["pid"] for one in workers if one["serving"]}
        if len(pids) == count and not set(pids.values()) & set((but or {}).values()):
            return pids
        await trio.sleep(0.05)


def client_of(frontend: Frontend) -> httpx.AsyncClient:
    """Return a client with one connection of its own."""
    return httpx.AsyncClient(base_url=frontend.http.base_url, limits=MANY, timeout=BUDGET)


@attrs.define
class Stream:
    """What one stream has said so far."""

    text: str = ""
    finished: str | None = None
    error: Exception | None = None
    begun: trio.Event = attrs.field(factory=trio.Event)

    async def read(self, frontend: Frontend, tokens: int, model: str = "tiny") -> None:
        """Read it to its end, on a connection of its own."""
        body = {
            "model": model,
            "prompt": "hi",
            "max_tokens": tokens,
            "stream": True,
            "temperature": 0,
        }
        try:
            async with (
                client_of(frontend) as client,
                client.stream("POST", "/v1/completions", json=body) as response,
            ):
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    self._take(line)
        except httpx.TransportError as error:
            self.error = error

    def _take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        self.begun.set()
        for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
            self.text += choice["text"]
            self.finished = choice["finish_reason"] or self.finished


async def metrics(frontend: Frontend) -> dict[str, float]:
    """Return all samples by name and labels, as they are written."""
    text = (await ask(frontend, "/metrics")).text
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
