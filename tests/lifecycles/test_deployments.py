"""Several frontends of one deployment, with stand-in engines that they start themselves."""

import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.lifecycles.rig import (
    SIMULATE,
    Frontend,
    commanded,
    config,
    fake_python,
    serving,
    wait_health,
)
from vllmfront.errors import ConfigurationError, StartupFailed
from vllmfront.lifecycles import EngineConfig, ModelConfig, RestartConfig, ServeConfig

QUICK = RestartConfig(backoff=0.05, backoff_cap=0.2)


def free_port() -> int:
    """Return a port for several programs to agree on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def node(
    folder: Path, port: int, *, engine: str = SIMULATE, moe: bool = False, **fields: Any
) -> ServeConfig:
    """Make one frontend of a deployment whose first one is at *port*."""
    python = fake_python(folder, engine=engine)
    overrides = {"num_experts": 8} if moe else {}
    return config(
        model=ModelConfig(model=config().model.model, overrides=overrides),
        engine=EngineConfig(
            **{"python": python, "handshake_port": port, "restart": QUICK, **fields}
        ),
    )


async def served(frontend: Frontend) -> set[int]:
    """Return the ranks that have answered requests of this frontend."""
    text = (await frontend.http.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:request_success_total{")]
    return {
        int(line.partition('engine="')[2].partition('"')[0])
        for line in lines
        if float(line.rpartition(" ")[2]) > 0
    }


async def answers(frontend: Frontend, count: int) -> list[int]:
    """Ask *count* times at once; return how many tokens came."""
    tokens: list[int] = []

    async def ask() -> None:
        answer = await frontend.generate(max_tokens=3)
        assert answer.status_code == 200, answer.text
        tokens.append(answer.json()["usage"]["completion_tokens"])

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(ask)
    return tokens


@asynccontextmanager
async def deployment(*settings: ServeConfig) -> AsyncGenerator[list[Frontend]]:
    """Run several frontends for the block."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving(each)) for each in settings]


async def test_each_node_serves_its_own_engines_and_the_first_brings_all_together(
    tmp_path: Path,
) -> None:
    port = free_port()
    shared: dict[str, Any] = {
        "hybrid_lb": True,
        "data_parallel_size": 2,
        "data_parallel_size_local": 1,
    }
    first, second = (
        node(tmp_path, port, data_parallel_start_rank=start, **shared) for start in (0, 1)
    )
    async with deployment(second, first) as (later, earlier):
        await earlier.wait_ready()
        await later.wait_ready()
        tokens = [await answers(each, 4) for each in (earlier, later)]
        ranks = [await served(each) for each in (earlier, later)]

    assert tokens == [[3] * 4] * 2
    assert ranks == [{0}, {1}]
    assert earlier.error is None
    assert later.error is None


async def test_engines_are_not_started_before_all_frontends_are_there(tmp_path: Path) -> None:
    port = free_port()
    shared: dict[str, Any] = {
        "hybrid_lb": True,
        "data_parallel_size": 2,
        "data_parallel_size_local": 1,
    }
    settings = node(tmp_path, port, **shared, ready_timeout=0.5)
    async with serving(settings) as frontend:
        health = (await frontend.http.get("/health")).status_code
        await frontend.ended.wait()

    assert health == 503
    assert commanded(f"tcp://127.0.0.1:{port}") == []
    assert isinstance(frontend.error, StartupFailed)
    assert "no frontend of engine 1 has said where it is" in str(frontend.error)


async def test_a_frontend_that_finds_no_first_one_says_so(tmp_path: Path) -> None:
    settings = node(
        tmp_path, free_port(), data_parallel_rank=1, data_parallel_size=2, ready_timeout=0.5
    )
    async with serving(settings) as frontend:
        await frontend.ended.wait()

    assert isinstance(frontend.error, StartupFailed)
    assert "no answer from the first node's frontend at tcp://127.0.0.1:" in str(frontend.error)


@pytest.mark.parametrize(
    ("fields", "moe", "refusal"),
    [
        ({"data_parallel_size": 4}, False, "--data-parallel-size is 4 there and 2 at the first"),
        ({"data_parallel_size": 2}, True, "takes the model for a mixture of experts"),
    ],
)
async def test_a_frontend_that_does_not_fit_is_refused(
    tmp_path: Path, fields: dict[str, Any], moe: bool, refusal: str
) -> None:
    port = free_port()
    first = node(tmp_path, port, data_parallel_rank=0, data_parallel_size=2)
    stranger = node(tmp_path, port, data_parallel_rank=1, moe=moe, **fields)
    async with serving(first), serving(stranger) as frontend:
        await frontend.ended.wait()

    assert isinstance(frontend.error, ConfigurationError)
    assert refusal in str(frontend.error)


@pytest.mark.slow
async def test_each_port_is_the_port_of_one_engine_and_one_tells_of_all(tmp_path: Path) -> None:
    overview = free_port()
    settings = node(
        tmp_path,
        free_port(),
        multi_port_lb=True,
        data_parallel_size=2,
        data_parallel_size_local=2,
        supervisor_port=overview,
    )
    async with serving(settings) as frontend, httpx.AsyncClient(timeout=30.0) as http:
        assert frontend.serving is not None
        assert frontend.serving.handshake_address is not None
        names = [each.socket.getsockname()[1] for each in frontend.serving.listeners]
        first, second = (f"http://127.0.0.1:{port}" for port in names)
        every = f"http://127.0.0.1:{overview}"
        early = (await http.get(f"{every}/health")).status_code
        for url in (first, second, every):
            await wait_for(http, f"{url}/health", 200)
        body = {"prompt": "hi", "max_tokens": 3}
        for _ in range(3):
            assert (await http.post(f"{second}/v1/completions", json=body)).status_code == 200
        ranks = await served(frontend)
        wrong = await http.post(
            f"{first}/v1/completions", json=body, headers={"X-data-parallel-rank": "1"}
        )
        (victim,) = commanded(f"{frontend.serving.handshake_address} --start-rank 1")
        os.kill(victim, signal.SIGKILL)
        await wait_for(http, f"{second}/ready", 503)
        during = [(await http.get(f"{url}/ready")).status_code for url in (first, every)]
        other = (await http.post(f"{first}/v1/completions", json=body)).status_code
        await wait_for(http, f"{every}/readyz", 200)
        missing = (await http.get(f"{every}/v1/models")).status_code

    assert early == 503
    assert ranks == {1}
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "data_parallel_rank"
    assert (during, other, missing) == ([200, 503], 200, 404)
    assert frontend.error is None


async def wait_for(http: httpx.AsyncClient, url: str, status: int) -> None:
    while (await http.get(url)).status_code != status:  # noqa: ASYNC110 (no event)
        await trio.sleep(0.01)


@pytest.mark.slow
async def test_a_frontend_that_is_started_anew_takes_its_place_again(tmp_path: Path) -> None:
    port = free_port()
    first, second = (
        node(tmp_path, port, data_parallel_rank=rank, data_parallel_size=2) for rank in (0, 1)
    )
    async with serving(first) as earlier:
        for _ in range(2):
            async with serving(second) as later:
                await earlier.wait_ready()
                await later.wait_ready()
                assert await answers(earlier, 2) == await answers(later, 2) == [3, 3]
                assert await served(later) == {1}
        assert await answers(earlier, 2) == [3, 3]

    assert earlier.error is None
    assert later.error is None


@pytest.mark.slow
async def test_without_the_first_frontend_the_others_serve_on_and_their_engines_wait_for_it(
    tmp_path: Path,
) -> None:
    port = free_port()
    first, second = (
        node(tmp_path, port, data_parallel_rank=rank, data_parallel_size=2) for rank in (0, 1)
    )
    async with serving(second) as later:
        async with serving(first):
            await later.wait_ready()
        assert await answers(later, 2) == [3, 3]
        (victim,) = commanded(f"tcp://127.0.0.1:{port} --start-rank 1")
        os.kill(victim, signal.SIGKILL)
        await wait_health(later.http, 503)
        async with serving(first) as earlier:
            await earlier.wait_ready()
            await later.wait_ready()
            assert await answers(later, 2) == [3, 3]

    assert later.error is None
    assert earlier.error is None
