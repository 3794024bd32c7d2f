"""Frontends under a supervisor: start-up, drain, the loss of engines and of the supervisor."""

import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from tests.lifecycles.rig import exists, wait_health
from tests.lifecycles.worker.rig import Worker, settings, simulated_engines, supervised
from vllmfront.errors import ConfigurationError, EngineDied, StartupFailed
from vllmfront.lifecycles import ModelConfig, ServerConfig
from vllmfront.lifecycles.worker._worker import ParentGone, drain_budget
from vllmfront.testing import SupervisorPlan


@attrs.define
class Stream:
    """A streamed completion, as far as it has come."""

    data: list[str] = attrs.field(factory=list)
    ended: trio.Event = attrs.field(factory=trio.Event)


@asynccontextmanager
async def streaming(worker: Worker, tokens: int) -> AsyncGenerator[Stream]:
    """Stream *tokens* in the background; the block begins with the first of them."""
    stream, begun = Stream(), trio.Event()
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": tokens, "stream": True}

    async def read() -> None:
        async with worker.http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    stream.data.append(line.removeprefix("data: "))
                    begun.set()
        stream.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await begun.wait()
        yield stream


async def test_until_engines_register_the_api_says_so() -> None:
    async with supervised() as worker:
        health = await worker.http.get("/health")
        refused = await worker.generate()
        async with simulated_engines(worker):
            answer = await worker.generate(max_tokens=3)
            models = (await worker.http.get("/v1/models")).json()

    assert health.status_code == refused.status_code == 503
    assert refused.json()["error"]["reason"] == "loading"
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert models["data"][0]["id"] == "tiny"
    assert worker.error is None


async def test_engines_may_register_over_tcp_and_clients_come_over_a_unix_socket(
    tmp_path: Path,
) -> None:
    path = tmp_path / "socket"
    plan = SupervisorPlan(uds=str(path), engines_over_tcp=True)
    async with supervised(plan=plan) as worker, simulated_engines(worker):
        answer = await worker.generate(max_tokens=3)

    assert answer.json()["usage"]["completion_tokens"] == 3
    assert exists(path)  # it is the supervisor's


async def test_the_engines_that_were_announced_are_served() -> None:
    plan = SupervisorPlan(start_rank=2, engine_count=2, data_parallel_size=8)
    async with supervised(plan=plan) as worker, simulated_engines(worker):
        pinned = await worker.http.post(
            "/v1/completions",
            json={"prompt": "hi", "max_tokens": 2},
            headers={"X-data-parallel-rank": "3"},
        )
        elsewhere = await worker.http.post(
            "/v1/completions",
            json={"prompt": "hi", "max_tokens": 2},
            headers={"X-data-parallel-rank": "0"},
        )
        engines = (await worker.http.get("/supervisor")).json()["engines"]["ranks"]

    assert [each["rank"] for each in engines] == [2, 3]
    assert pinned.status_code == 200
    assert elsewhere.status_code == 400


async def test_a_drain_lets_running_streams_end_and_refuses_new_requests() -> None:
    config = settings(server=ServerConfig(shutdown_timeout=20.0))
    async with supervised(config) as worker, simulated_engines(worker):
        async with streaming(worker, 60) as stream:
            worker.signal()
            await wait_health(worker.http, 503)
            refused = await worker.generate()
        await worker.ended.wait()

    assert refused.status_code == 503
    assert refused.json()["error"]["reason"] == "draining"
    assert json.loads(stream.data[-2])["choices"][0]["finish_reason"] == "length"
    assert worker.error is None


async def test_a_terminals_interrupt_that_the_supervisor_passes_on_is_one_order() -> None:
    config = settings(server=ServerConfig(shutdown_timeout=20.0))
    async with supervised(config) as worker, simulated_engines(worker):
        async with streaming(worker, 60) as stream:
            worker.signal(signal.SIGINT)
            await wait_health(worker.http, 503)
            worker.signal(signal.SIGTERM)
        await worker.ended.wait()

    assert json.loads(stream.data[-2])["choices"][0]["finish_reason"] == "length"
    assert worker.error is None


async def test_a_second_order_cuts_the_drain_short() -> None:
    config = settings(server=ServerConfig(shutdown_timeout=600.0))
    async with supervised(config) as worker, simulated_engines(worker):
        async with streaming(worker, 20_000) as stream:
            worker.signal()
            await wait_health(worker.http, 503)
            worker.signal()
        await worker.ended.wait()

    assert json.loads(stream.data[-2])["choices"][0]["finish_reason"] == "abort"
    assert worker.error is None


@pytest.mark.parametrize(
    ("timeout", "budget"), [(0, 0.3), (2, 2.0), (4, 3.5), (5, 3.5), (30, 28.5)]
)
def test_what_runs_on_is_cut_off_in_words_before_the_supervisor_kills_us(
    timeout: float, budget: float
) -> None:
    assert drain_budget(timeout) == budget


async def test_the_loss_of_the_engine_ends_requests_with_a_typed_error_and_then_the_program() -> (
    None
):
    async with supervised(loss_grace=0.3) as worker, simulated_engines(worker) as engines:
        async with streaming(worker, 20_000) as stream:
            engines.kill()
            await stream.ended.wait()
            health = await worker.http.get("/health")
            refused = await worker.generate()
        await worker.ended.wait()

    error = json.loads(stream.data[-2])["error"]
    assert stream.data[-1] == "[DONE]"
    assert (error["code"], error["reason"]) == (503, "interrupted")
    assert health.status_code == refused.status_code == 503
    assert refused.json()["error"]["reason"] == "failed"
    assert isinstance(worker.error, EngineDied)


async def test_a_death_that_the_supervisor_has_seen_first_is_told_as_such() -> None:
    async with supervised() as worker, simulated_engines(worker) as engines:
        async with streaming(worker, 20_000) as stream:
            engines.kill()
            worker.signal()
            await stream.ended.wait()
        await worker.ended.wait()

    assert json.loads(stream.data[-2])["error"]["reason"] == "interrupted"


async def test_the_order_to_stop_does_not_make_a_loss_a_success() -> None:
    async with supervised(loss_grace=600.0) as worker, simulated_engines(worker) as engines:
        engines.kill()
        await wait_health(worker.http, 503)
        worker.signal()
        await worker.ended.wait()

    assert isinstance(worker.error, EngineDied)


async def test_engines_that_end_after_the_order_to_stop_are_no_failure() -> None:
    config = settings(server=ServerConfig(shutdown_timeout=600.0))
    async with supervised(config) as worker, simulated_engines(worker) as engines:
        async with streaming(worker, 20_000) as stream:
            worker.signal(signal.SIGINT)
            await wait_health(worker.http, 503)
            engines.kill()
            await stream.ended.wait()
        await worker.ended.wait()

    assert "error" in json.loads(stream.data[-2])
    assert worker.error is None


async def test_one_of_two_independent_engines_may_be_lost() -> None:
    plan = SupervisorPlan(engine_count=2, data_parallel_size=2)
    async with (
        supervised(plan=plan, loss_grace=0.1) as worker,
        simulated_engines(worker) as engines,
    ):
        engines.kill(0)
        answers = [await worker.generate(max_tokens=2) for _ in range(4)]
        health = await worker.http.get("/health")
        engines.kill(1)
        await worker.ended.wait()

    assert [answer.status_code for answer in answers] == [200] * 4
    assert health.status_code == 200
    assert isinstance(worker.error, EngineDied)


async def test_the_end_of_the_supervisor_ends_even_a_long_drain() -> None:
    config = settings(server=ServerConfig(shutdown_timeout=600.0))
    async with (
        supervised(config) as worker,
        simulated_engines(worker),
        streaming(worker, 20_000) as stream,
    ):
        worker.signal()
        await wait_health(worker.http, 503)
        with trio.fail_after(5):
            worker.parent.end.set()
            await worker.ended.wait()

    assert json.loads(stream.data[-2])["choices"][0]["finish_reason"] == "abort"
    assert isinstance(worker.error, ParentGone)


async def test_engines_that_do_not_register_in_time_end_the_start_up() -> None:
    async with supervised(settings(ready_timeout=0.2)) as worker:
        await worker.ended.wait()

    assert isinstance(worker.error, StartupFailed)
    assert "no registration from engine 0" in str(worker.error)


async def test_a_model_that_is_not_there_ends_the_start_up() -> None:
    config = attrs.evolve(settings(), model=ModelConfig(model="/does/not/exist"))
    async with supervised(config) as worker:
        await worker.ended.wait()

    assert isinstance(worker.error.__cause__ if worker.error else None, ConfigurationError)


async def test_nobody_is_accepted_after_the_end() -> None:
    async with supervised() as worker:
        worker.signal()
        await worker.ended.wait()
        worker.supervisor.clients.close()

        with pytest.raises(httpx.ConnectError):
            await worker.http.get("/health")
