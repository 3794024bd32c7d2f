"""Several workers as one server."""

import trio

from tests.lifecycles.workers.rig import Stream, inside, metrics, settings, workers_serving
from vllmfront.lifecycles import RequestsConfig

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
    assert sorted(one["connections"] for one in now["workers"]) == [4, 5]  # the last one asks
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
