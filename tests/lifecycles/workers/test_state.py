"""What holds for all workers, whichever of them is asked."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.lifecycles.rig import Frontend
from tests.lifecycles.workers.rig import Stream, client_of, inside, workers_serving

pytestmark = pytest.mark.slow

CLIENTS = 4
"""So many connections reach both workers."""


@pytest.fixture(autouse=True)
def operators_routes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    monkeypatch.setenv("VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES", str(tmp_path))


@asynccontextmanager
async def clients_of(frontend: Frontend) -> AsyncGenerator[list[httpx.AsyncClient]]:
    """Hold connections to all workers."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(frontend)) for _ in range(CLIENTS)]
        for client in clients:
            await client.get("/health")
        found = {one["worker"]: one["connections"] for one in (await inside(frontend))["workers"]}
        assert min(found.values()) >= CLIENTS // 2
        yield clients


async def complete(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 3, **fields})


async def wait_waiting(frontend: Frontend, count: int) -> None:
    while (await inside(frontend))["engines"]["waiting"] != count:  # noqa: ASYNC110 (no event)
        await trio.sleep(0.02)


async def test_a_pause_holds_requests_at_all_workers_and_any_of_them_ends_it() -> None:
    async with workers_serving() as frontend, clients_of(frontend) as clients:
        paused = await clients[0].post("/pause", params={"mode": "keep"})
        seen = [(await client.get("/is_paused")).json() for client in clients]
        ready = [await client.get("/ready") for client in clients]
        answers: list[int] = []

        async def ask(client: httpx.AsyncClient) -> None:
            answers.append((await complete(client)).status_code)

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(ask, client)
            await wait_waiting(frontend, CLIENTS)
            before = list(answers)
            async with client_of(frontend) as another:
                resumed = await another.post("/resume")

        assert paused.status_code == resumed.status_code == 200
        assert seen == [{"is_paused": True}] * CLIENTS
        assert [(one.status_code, one.json()["state"]) for one in ready] == [
            (503, "paused")
        ] * CLIENTS
        assert before == []
        assert answers == [200] * CLIENTS


async def test_a_pause_that_aborts_ends_streams_at_all_workers_and_refuses_at_all() -> None:
    async with workers_serving(step_time=0.01) as frontend, clients_of(frontend) as clients:
        streams = [Stream() for _ in range(CLIENTS)]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(stream.read, frontend, 20_000)
            for stream in streams:
                await stream.begun.wait()
            await clients[1].post("/pause", params={"mode": "abort"})
        refused = [await complete(client) for client in clients]
        await clients[2].post("/resume")
        served = [(await complete(client)).status_code for client in clients]

        assert {stream.finished for stream in streams} == {"abort"}
        assert {answer.status_code for answer in refused} == {503}
        assert {answer.json()["error"]["reason"] for answer in refused} == {"paused"}
        assert served == [200] * CLIENTS


async def test_orders_to_abort_reach_requests_of_all_workers() -> None:
    async with workers_serving(step_time=0.01) as frontend:
        streams = [Stream() for _ in range(CLIENTS)]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(stream.read, frontend, 20_000)
            for stream in streams:
                await stream.begun.wait()
            answer = (await frontend.http.post("/abort_requests")).json()

        assert answer["aborted"] == CLIENTS
        assert {stream.finished for stream in streams} == {"abort"}


async def test_an_adapter_is_there_and_gone_at_all_workers_and_streams_keep_theirs(
    tmp_path: Path,
) -> None:
    (tmp_path / "poet").mkdir()
    async with (
        workers_serving(step_time=0.01, max_loras=2) as frontend,
        clients_of(frontend) as clients,
    ):
        body = {"lora_name": "poet", "lora_path": str(tmp_path / "poet")}
        loaded = await clients[0].post("/v1/load_lora_adapter", json=body)
        assert loaded.status_code == 200, loaded.text
        listed = [
            [one["id"] for one in (await client.get("/v1/models")).json()["data"]]
            for client in clients
        ]
        served = [(await complete(client, model="poet")).status_code for client in clients]
        streams = [Stream() for _ in range(CLIENTS)]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(stream.read, frontend, 100, "poet")
            for stream in streams:
                await stream.begun.wait()
            unloaded = await clients[3].post("/v1/unload_lora_adapter", json={"lora_name": "poet"})
            unknown = [(await complete(client, model="poet")).status_code for client in clients]

        assert unloaded.status_code == 200
        assert listed == [["tiny", "poet"]] * CLIENTS
        assert served == [200] * CLIENTS
        assert unknown == [404] * CLIENTS
        assert {stream.finished for stream in streams} == {"length"}
        assert len({stream.text for stream in streams}) == 1
