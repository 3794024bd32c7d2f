"""Several workers as one server."""

import attrs
import httpx
import pytest
import trio
import trustme

from tests.lifecycles.rig import config, serving, simulated_engine
from tests.lifecycles.workers.rig import (
    Stream,
    client_of,
    inside,
    metrics,
    settings,
    wait_workers,
    workers_serving,
)
from vllmfront.errors import ConfigurationError, FirstStartFailed
from vllmfront.lifecycles import ListenConfig, RequestsConfig, ServerConfig, TlsConfig
from vllmfront.lifecycles.workers import _children, _scaling

ANSWERED = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}'
REJECTED = 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}'


async def test_two_workers_are_one_server() -> None:
    """Connections and their work are dealt out evenly; limits and counters hold for all."""
    limited = settings(requests=RequestsConfig(max_queued=8))
    async with workers_serving(limited, step_time=0.02) as frontend:
        streams = [Stream() for _ in range(8)]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(stream.read, frontend, 100)
            for stream in streams:
                await stream.begun.wait()
            now = await inside(frontend)
            refused = await frontend.generate()
            load = (await frontend.http.get("/load")).json()
        after = await metrics(frontend)

    assert sorted(one["choices"] for one in now["workers"]) == [4, 4]
    # Some more than eight: one that asks, one that has asked and is not closed yet.
    assert {one["connections"] for one in now["workers"]} <= {4, 5}
    assert all(one["resident_bytes"] > 2**20 for one in now["workers"])
    assert now["engines"]["requests"] == now["engines"]["ranks"][0]["in_flight"] == 8
    assert load == {"server_load": 8}
    assert refused.status_code == 503
    assert "8 of at most 8" in refused.json()["error"]["message"]
    assert {stream.finished for stream in streams} == {"length"}
    assert len({stream.text for stream in streams}) == 1
    assert after[ANSWERED] == 8
    assert after[REJECTED] == 1
    assert after['vllm:generation_tokens_total{engine="0",model_name="tiny"}'] == 800
    assert after["vllmfront:admitted_choices_limit"] == 8
    assert frontend.error is None


@pytest.mark.slow
async def test_another_worker_is_started_when_those_that_run_are_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_children, "usable_processors", lambda: 3.0)
    async with (
        serving(settings(None), budget=60) as frontend,
        simulated_engine(frontend),
    ):
        first = await wait_workers(frontend, 1)
        # It idles, and any use of a processor counts as being busy from now on.
        monkeypatch.setattr(_scaling, "BUSY_SHARE", 0.0)
        monkeypatch.setattr(_scaling, "BUSY_SECONDS", 0.5)
        both = await wait_workers(frontend, 2)

    assert list(first) == [1]
    assert both[1] == first[1]
    assert frontend.error is None


@pytest.mark.slow
async def test_on_one_processor_there_are_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_children, "usable_processors", lambda: 2.0)
    async with serving(settings(None)) as frontend, simulated_engine(frontend):
        shown = await inside(frontend)

    assert "workers" not in shown


@pytest.mark.slow
async def test_what_keeps_a_worker_from_starting_is_what_ends_the_program() -> None:
    authority = trustme.CA()
    with authority.cert_pem.tempfile() as no_key:
        wanted = config(
            server=ServerConfig(api_server_count=2, tls=TlsConfig(certfile=no_key)),
        )
        async with serving(wanted, budget=60) as frontend:
            await frontend.ended.wait()

    assert isinstance(frontend.error, FirstStartFailed)
    assert isinstance(frontend.error.__cause__, ConfigurationError)
    assert no_key in str(frontend.error.__cause__)


async def wait_serving(operators: httpx.AsyncClient) -> None:
    """Wait until two workers serve, as operators are told."""
    while True:
        workers = (await operators.get("/supervisor")).json()["workers"]
        if [one["serving"] for one in workers] == [True, True]:
            return
        await trio.sleep(0.05)


@pytest.mark.slow
async def test_operators_have_a_listener_of_their_own_that_speaks_for_all_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    path = str(tmp_path_factory.mktemp("a") / "admin")
    wanted = attrs.evolve(settings(), listen=ListenConfig(port=0, admin=path))
    async with (
        serving(wanted, budget=60) as frontend,
        simulated_engine(frontend, step_time=0.01),
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=path), base_url="http://operators"
        ) as operators,
    ):
        await wait_serving(operators)
        streams = [Stream() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(stream.read, frontend, 20_000)
            for stream in streams:
                await stream.begun.wait()
            async with client_of(frontend) as client:
                hidden = [
                    (await client.post("/pause")).status_code,
                    (await client.get("/supervisor")).status_code,
                ]
            aborted = (await operators.post("/abort_requests")).json()
        text = (await operators.get("/metrics")).text

    assert hidden == [404, 404]
    assert aborted["aborted"] == 4
    assert {stream.finished for stream in streams} == {"abort"}
    assert 'vllmfront:request_ends_total{cause="admin_aborted"} 4.0' in text
