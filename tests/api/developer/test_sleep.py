"""``/sleep`` and ``/wake_up``, as operators and clients see them."""

import pytest
import trio

from tests.api.developer.rig import COMPLETIONS, completion, error_of, stage
from vllmfront.control import ControlConfig


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
async def test_nothing_is_generated_until_all_parts_are_awake(version: str) -> None:
    async with stage(vllm_version=version) as on:
        said = await on.text()
        assert await on.get("/is_sleeping") == {"is_sleeping": False}
        assert await on.done("/sleep") == {"status": "sleeping", "level": 1}
        assert await on.get("/is_sleeping") == {"is_sleeping": True}
        error = error_of(await on.generate(), 503)
        assert (error["reason"], error["mode"]) == ("sleeping", "abort")

        part = await on.done("/wake_up", tags="weights")
        assert part == {"status": "sleeping", "tags": ["weights"]}
        assert error_of(await on.generate(), 503)["reason"] == "sleeping"

        rest = await on.done("/wake_up", tags="kv_cache")
        assert rest == {"status": "awake", "tags": ["kv_cache"]}
        assert await on.get("/is_sleeping") == {"is_sleeping": False}
        assert await on.text() == said


async def test_modes_say_what_becomes_of_what_runs() -> None:
    async with stage() as on:
        alone = await on.text(max_tokens=60)
        aborted = on.begin(COMPLETIONS, completion(max_tokens=5000))
        await on.in_flight(1)
        await on.done("/sleep", level=2, mode="abort")
        answer = (await aborted.finished()).json
        assert answer["choices"][0]["finish_reason"] == "abort"
        await on.done("/wake_up")

        waited = on.begin(COMPLETIONS, completion(max_tokens=60))
        await on.in_flight(1)
        await on.done("/sleep", mode="wait")
        assert (await waited.finished()).json["choices"][0]["text"] == alone
        await on.done("/wake_up")

        kept = on.begin(COMPLETIONS, completion(max_tokens=60))
        await on.in_flight(1)
        await on.done("/sleep", mode="keep")
        await trio.sleep(0.05)
        assert not kept.writer.started
        await on.done("/wake_up")
        assert (await kept.finished()).json["choices"][0]["text"] == alone


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ({"level": 3}, "level must be between 0 and 2"),
        ({"level": -1}, "level must be a whole number"),
        ({"level": "9" * 5000}, "level must be between 0 and 2"),
        ({"mode": "nap"}, "mode must be one of"),
    ],
)
async def test_other_ways_to_sleep_are_refused(query: dict[str, object], complaint: str) -> None:
    async with stage() as on:
        assert complaint in error_of(await on.post("/sleep", **query), 400)["message"]
        assert (await on.generate()).status == 200


async def test_all_ranks_sleep_and_wake_up_together() -> None:
    async with stage(ranks=3) as on:
        await on.done("/sleep")
        assert set(await on.plane.calls.order("test", "is_sleeping")) == {True}
        assert await on.done("/wake_up", tags="scheduling") == {
            "status": "sleeping",
            "tags": ["scheduling"],
        }
        assert (await on.done("/wake_up"))["status"] == "awake"
        assert set(await on.plane.calls.order("test", "is_sleeping")) == {False}


async def test_a_pause_outlasts_a_sleep_inside_it() -> None:
    async with stage() as on:
        alone = await on.text(max_tokens=60)
        kept = on.begin(COMPLETIONS, completion(max_tokens=60))
        await on.in_flight(1)
        await on.done("/pause", mode="keep")
        await on.done("/sleep", level=2, mode="keep")
        await on.done("/wake_up")
        await trio.sleep(0.05)
        assert not kept.writer.started, "the pause lasts"
        assert await on.get("/is_paused") == {"is_paused": True}

        await on.done("/resume")
        assert (await kept.finished()).json["choices"][0]["text"] == alone


async def test_a_sleep_outlasts_a_pause_around_it() -> None:
    async with stage() as on:
        await on.done("/pause")
        await on.done("/sleep")
        await on.done("/resume")
        assert error_of(await on.generate(), 503)["reason"] == "sleeping"
        await on.done("/wake_up")
        assert (await on.generate()).status == 200


async def test_caches_are_let_go_of_in_a_pause() -> None:
    async with stage() as on:
        assert error_of(await on.post("/release_kv_cache_memory"), 409)["state"] == "running"
        await on.done("/pause")
        assert await on.done("/release_kv_cache_memory") == {"status": "kv_cache_released"}
        assert error_of(await on.post("/release_kv_cache_memory"), 409)["state"] == "sleeping"
        await on.done("/resume")
        assert error_of(await on.generate(), 503)["reason"] == "sleeping"

        await on.done("/wake_up", tags="kv_cache")
        assert (await on.generate()).status == 200


async def test_a_sleep_that_takes_too_long_is_a_504_and_can_be_taken_back() -> None:
    async with stage(ControlConfig(timeout=0.05)) as on:
        running = on.begin(COMPLETIONS, completion(max_tokens=100))
        await on.in_flight(1)
        error = error_of(await on.post("/sleep", mode="wait"), 504)
        assert error["phase"] == "sleep"
        assert error_of(await on.generate(), 503)["reason"] == "sleeping"
        await running.finished()

        assert (await on.done("/wake_up"))["status"] == "awake"
        assert (await on.generate()).status == 200


async def test_operations_are_timed() -> None:
    async with stage() as on:
        await on.done("/sleep")
        await on.done("/wake_up")
        times = on.plane.sleep_times

        counts = {name: each.snapshot().count for name, each in times.durations.items()}
        assert counts == {"sleep": 1, "wake": 1, "release_kv_cache_memory": 0}
        assert set(times.in_flight.values()) == {0}


async def test_incomplete_weights_are_not_woken_up_to_serve() -> None:
    async with stage() as on:
        await on.done("/init_weight_transfer_engine", {"init_info": {}})
        await on.done("/sleep", level=2)
        await on.done("/wake_up", tags="weights")
        await on.done("/start_weight_update")
        await on.done("/update_weights", {"update_info": {"a": 1}})
        error = error_of(await on.post("/wake_up", tags="kv_cache"), 409)
        assert error["state"] == "updating"
        assert "engine 0 are incomplete" in error["message"]
        assert error_of(await on.generate(), 503)["reason"] == "sleeping"

        await on.done("/finish_weight_update")
        await on.done("/wake_up", tags="kv_cache")
        assert (await on.generate()).status == 200
        await on.done("/sleep")
        await on.done("/wake_up", tags="weights")
        await on.done("/start_weight_update")
        assert (await on.done("/wake_up", force="true"))["status"] == "awake"
