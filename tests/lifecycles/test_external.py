"""Frontends whose engines somebody else runs: start-up, drain, and the end."""

import json
import signal
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trustme

from tests.lifecycles.rig import (
    Frontend,
    config,
    exists,
    serving,
    simulated_engine,
    wait_health,
    wait_until,
)
from vllmfront.errors import ConfigurationError, StartupFailed
from vllmfront.lifecycles import EngineConfig, ListenConfig, ModelConfig, ServerConfig, TlsConfig


async def test_until_an_engine_comes_the_api_says_so() -> None:
    async with serving(config()) as frontend:
        health = await frontend.http.get("/health")
        refused = await frontend.generate()
        models = await frontend.http.get("/v1/models")
        async with simulated_engine(frontend):
            answer = await frontend.generate(max_tokens=3)

    assert health.status_code == refused.status_code == 503
    assert refused.json()["error"]["type"] == "ServiceUnavailableError"
    assert "retry-after" in refused.headers
    assert models.json()["data"][0]["id"] == "tiny"
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert frontend.error is None


@asynccontextmanager
async def slow_stream(frontend: Frontend, tokens: int) -> AsyncGenerator[list[str]]:
    """Stream *tokens* in the background; the list holds the data of what has come so far."""
    data: list[str] = []
    begun = trio.Event()
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": tokens, "stream": True}

    async def read() -> None:
        async with frontend.http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    data.append(line.removeprefix("data: "))
                    begun.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await begun.wait()
        yield data


def finish_reason(data: list[str]) -> str | None:
    assert data[-1] == "[DONE]"
    reason: str | None = json.loads(data[-2])["choices"][0]["finish_reason"]
    return reason


async def test_a_drain_lets_running_streams_end_and_refuses_new_requests() -> None:
    settings = config(server=ServerConfig(shutdown_timeout=20.0))
    async with serving(settings) as frontend, simulated_engine(frontend, step_time=0.01):
        async with slow_stream(frontend, 60) as data:
            frontend.signal()
            await wait_health(frontend.http, 503)
            refused = await frontend.generate()
        await frontend.ended.wait()

        with pytest.raises(httpx.ConnectError):
            await frontend.http.get("/health")

    assert refused.status_code == 503
    assert refused.headers["connection"] == "close"
    assert "shutting down" in refused.json()["error"]["message"]
    assert finish_reason(data) == "length"
    assert frontend.error is None


@pytest.mark.parametrize("shutdown_timeout", [0.0, 0.3])
async def test_at_the_deadline_streams_end_in_words(shutdown_timeout: float) -> None:
    settings = config(server=ServerConfig(shutdown_timeout=shutdown_timeout))
    async with serving(settings) as frontend, simulated_engine(frontend, step_time=0.01):
        async with slow_stream(frontend, 20_000) as data:
            frontend.signal()
        await frontend.ended.wait()

    assert finish_reason(data) == "abort"
    assert frontend.error is None


async def test_a_second_signal_cuts_the_drain_short() -> None:
    settings = config(server=ServerConfig(shutdown_timeout=600.0))
    async with serving(settings) as frontend, simulated_engine(frontend, step_time=0.01):
        async with slow_stream(frontend, 20_000) as data:
            frontend.signal(signal.SIGINT)
            await wait_health(frontend.http, 503)
            frontend.signal(signal.SIGINT)
        await frontend.ended.wait()

    assert finish_reason(data) == "abort"


async def test_a_unix_socket_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with serving(config(listen=ListenConfig(uds=str(path)))) as frontend:
        assert (await frontend.http.get("/health")).status_code == 503
        assert exists(path)

    assert not exists(path)


async def test_engines_that_do_not_come_in_time_end_the_start_up() -> None:
    engine = EngineConfig(data_parallel_size_local=0, ready_timeout=0.2)
    async with serving(config(engine=engine)) as frontend:
        await frontend.ended.wait()

    assert isinstance(frontend.error, StartupFailed)


async def test_a_model_that_is_not_there_ends_the_start_up() -> None:
    async with serving(config(model=ModelConfig(model="/does/not/exist"))) as frontend:
        await frontend.ended.wait()

    assert str(frontend.error) == "model failed at the first start"
    assert isinstance(frontend.error.__cause__ if frontend.error else None, ConfigurationError)


async def test_an_address_that_is_taken_ends_the_start_up() -> None:
    async with serving(config()) as first:
        assert first.serving is not None
        port = first.serving.listeners[0].socket.getsockname()[1]
        async with serving(config(listen=ListenConfig(port=port))) as second:
            await second.ended.wait()

        assert isinstance(second.error, ConfigurationError)
        assert f"port {port}" in str(second.error)
        assert not first.ended.is_set()


async def test_an_engine_address_that_is_taken_ends_the_start_up() -> None:
    async with serving(config()) as first:
        assert first.serving is not None
        address = first.serving.handshake_address
        assert address is not None
        port = int(address.rpartition(":")[2])
        engine = EngineConfig(data_parallel_size_local=0, handshake_port=port)
        async with serving(config(engine=engine)) as second:
            await second.ended.wait()

        assert isinstance(second.error, ConfigurationError)
        assert str(second.error).startswith(f"cannot listen for engines at {address}: Address")
        assert not first.ended.is_set()


async def test_a_certificate_that_is_not_there_ends_the_start_up() -> None:
    tls = TlsConfig(certfile="/does/not/exist")
    async with serving(config(server=ServerConfig(tls=tls))) as frontend:
        await frontend.ended.wait()

    assert str(frontend.error) == "api failed at the first start"
    assert "/does/not/exist" in str(frontend.error.__cause__ if frontend.error else None)


async def test_certificates_are_read_anew_at_sighup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file = tmp_path / "both.pem"

    def issue() -> trustme.CA:
        authority = trustme.CA()
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(file)
        return authority

    async def is_shown(frontend: Frontend, authority: trustme.CA) -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        url = f"https://localhost:{frontend.http.base_url.port}/version"
        async with httpx.AsyncClient(verify=context) as client:
            try:
                return (await client.get(url)).status_code == 200
            except httpx.ConnectError:
                return False

    async def reload(frontend: Frontend, text: str) -> None:
        frontend.signal(signal.SIGHUP)
        await wait_until(lambda: text in caplog.text)

    old = issue()
    tls = TlsConfig(certfile=str(file))
    async with serving(config(server=ServerConfig(tls=tls))) as frontend:
        assert await is_shown(frontend, old)
        new = issue()
        await reload(frontend, f"reloaded certificates for connections to come: {file}")
        assert [await is_shown(frontend, each) for each in (old, new)] == [False, True]
        file.write_text("rubbish")
        await reload(frontend, "keeping the former certificates: cannot use")
        assert await is_shown(frontend, new)
    assert frontend.error is None


async def test_refused_and_abandoned_requests_are_in_the_metrics() -> None:
    async with serving(config()) as frontend:
        url = frontend.http.base_url
        stream = await trio.open_tcp_stream(url.host, url.port or 0)
        async with stream:
            await stream.send_all(b"rubbish\r\n\r\n")
            assert b"400" in await stream.receive_some()
        metrics = (await frontend.http.get("/metrics")).text

    assert 'vllmfront:http_rejected_total{status="400"} 1.0' in metrics
    assert 'vllmfront:http_cut_short_total{cause="client_gone"} 0.0' in metrics


async def test_requests_go_to_all_engines() -> None:
    engine = EngineConfig(data_parallel_size_local=0, data_parallel_size=2)
    async with serving(config(engine=engine)) as frontend, simulated_engine(frontend, ranks=2):
        await frontend.generate(prompt=["a", "b", "c", "d"], max_tokens=2)
        metrics = (await frontend.http.get("/metrics")).text

    served = [line for line in metrics.splitlines() if "generation_tokens_total{" in line]
    assert [line.rpartition(" ")[2] for line in served] == ["4.0", "4.0"]


async def test_the_stats_line_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "0.05")
    with caplog.at_level("INFO", logger="vllmfront"):
        async with serving(config()) as frontend, simulated_engine(frontend):
            await frontend.generate(max_tokens=2)
            await wait_until(lambda: "Avg prompt throughput" in caplog.text)

    assert f"listening on {frontend.http.base_url}".rstrip("/") in caplog.text
