"""Caches, calls of workers, and what is told about the engines."""

import pytest

from tests.api.developer.rig import COMPLETIONS, completion, error_of, stage


async def test_caches_are_reset_unless_requests_use_them() -> None:
    async with stage() as on:
        assert await on.done("/reset_prefix_cache") == {"success": True}
        running = on.begin(COMPLETIONS, completion(max_tokens=5000))
        await on.in_flight(1)
        assert await on.done("/reset_prefix_cache") == {"success": False}
        forced = await on.done("/reset_prefix_cache", reset_running_requests="true")
        assert forced == {"success": True}
        running.leave()
        assert await on.done("/reset_mm_cache") is None
        assert await on.done("/reset_encoder_cache") is None
        answer = await on.post("/reset_prefix_cache", reset_external="maybe")
        assert "must be true or false" in error_of(answer, 400)["message"]


async def test_every_worker_of_every_engine_is_called() -> None:
    async with stage(ranks=2) as on:
        healthy = await on.done("/collective_rpc", {"method": "check_health"})
        assert healthy == {"results": [None, None]}
        sums = await on.done(
            "/collective_rpc",
            {"method": "compute_weight_checksums", "args": [], "kwargs": {}, "timeout": 5},
        )
        assert [list(one) for one in sums["results"]] == [["token_source"]] * 2

        error = error_of(await on.post("/collective_rpc", {"method": "nap"}), 500)
        assert "Method 'nap' is not implemented" in error["message"]
        assert error["phase"] == "collective_rpc"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "Missing 'method' in request body"),
        ({"method": 5}, "method: invalid type: integer `5`, expected a string"),
        ({"method": "m", "args": {}}, "args: invalid type: map, expected a sequence"),
        ({"method": "m", "kwargs": []}, "kwargs: invalid type: sequence, expected a map"),
        ({"method": "m", "timeout": "x"}, "timeout: invalid type: string"),
    ],
)
async def test_calls_that_make_no_sense_reach_no_engine(body: object, complaint: str) -> None:
    async with stage() as on:
        assert complaint in error_of(await on.post("/collective_rpc", body), 400)["message"]
        assert on.client.snapshot().pending_calls == 0


async def test_operators_see_configuration_and_variables_without_secrets() -> None:
    async with stage() as on:
        told = await on.get("/server_info")
        assert told["vllm_config"] == "a.b=1\nc=d"
        assert told["vllm_env"]["VLLM_SERVER_DEV_MODE"] == "1"
        assert told["vllm_env"]["VLLM_API_KEY"] == "***"
        assert "HOME" not in told["vllm_env"]
        assert set(told["system_env"]) == {"arch", "family", "os"}

        as_json = await on.get("/server_info", config_format="json")
        assert as_json["vllm_config"] == {"a": {"b": 1}, "c": "d"}
        answer = await on.begin("/server_info", method="GET", config_format="xml").finished()
        assert "must be one of text, json" in error_of(answer, 400)["message"]


async def test_the_number_of_engines_stays() -> None:
    async with stage(ranks=2) as on:
        same = await on.done("/scale_elastic_ep", {"new_data_parallel_size": 2})
        assert same == {"message": "Scaled to 2 data parallel engines"}
        error = error_of(await on.post("/scale_elastic_ep", {"new_data_parallel_size": 3}), 501)
        assert "is 2 and cannot become 3 while the server runs" in error["message"]
        for body in ({}, {"new_data_parallel_size": 0}, {"new_data_parallel_size": "2"}):
            error_of(await on.post("/scale_elastic_ep", body), 400)
        scaling = await on.done("/is_scaling_elastic_ep")
        assert (scaling["is_scaling_elastic_ep"], scaling["phase"]) == (False, "idle")
        assert await on.get("/kv_event_sources") == {}
