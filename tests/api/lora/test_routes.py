"""Adapters over HTTP: loaded, named by requests, unloaded."""

from typing import Any

import pytest
import trio

from tests.api.developer.rig import COMPLETIONS, Stage, completion, error_of, stage
from vllmfront.api.lora import LoraRoutes

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
CHAT = "/v1/chat/completions"


async def load(on: Stage, name: str = "sql", path: str = "org/sql", **fields: Any) -> None:
    answer = await on.post(LOAD, {"lora_name": name, "lora_path": path, **fields})
    assert (answer.status, answer.body.decode()) == (
        200,
        f"Success: LoRA adapter '{name}' added successfully.",
    )


async def unload(on: Stage, name: str = "sql", **fields: Any) -> None:
    answer = await on.post(UNLOAD, {"lora_name": name, **fields})
    assert (answer.status, answer.body.decode()) == (
        200,
        f"Success: LoRA adapter '{name}' removed successfully.",
    )


async def test_requests_name_an_adapter_in_place_of_the_model() -> None:
    async with stage(max_loras=2) as on:
        plain = await on.text()
        await load(on)
        answer = await on.done(COMPLETIONS, completion(model="sql"))
        assert answer["model"] == "sql"
        assert answer["choices"][0]["text"] != plain
        assert await on.text(model="tiny") == await on.text() == plain

        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
        for _ in range(2):  # a stream of its own task, and one without
            stream = (await on.begin(CHAT, {**chat, "model": "sql"}).finished()).events
            assert {event["model"] for event in stream[:-1]} == {"sql"}


async def test_what_was_remembered_of_a_request_does_not_outlive_the_name() -> None:
    async with stage(max_loras=2) as on:
        await load(on)
        chat = {
            "model": "sql",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 3,
            "stream": True,
        }
        for _ in range(3):
            assert (await on.post(CHAT, chat)).status == 200
        await unload(on)

        for path, body in ((CHAT, chat), (COMPLETIONS, completion(model="sql"))):
            error = error_of(await on.post(path, body), 404)
            assert (error["message"], error["param"]) == (
                "The model `sql` does not exist.",
                "model",
            )


async def test_loaded_in_place_it_answers_with_other_weights() -> None:
    async with stage(max_loras=2) as on:
        await load(on)
        before = await on.text(model="sql")
        again = {"lora_name": "sql", "lora_path": "org/better"}
        error = error_of(await on.post(LOAD, again), 400)
        assert "already loaded" in error["message"]
        assert error["param"] == "lora_name"

        await load(on, path="org/better", load_inplace=True)
        assert await on.text(model="sql") != before
        assert on.client.adapters.served[0].int_id == 1


async def test_what_runs_goes_on_when_its_adapter_is_unloaded() -> None:
    async with stage(max_loras=2) as on:
        await load(on)
        alone = await on.text(model="sql", max_tokens=100)
        running = on.begin(COMPLETIONS, completion(model="sql", max_tokens=100))
        await on.in_flight(1)
        await unload(on)
        error_of(await on.generate(model="sql"), 404)

        assert (await running.finished()).json["choices"][0]["text"] == alone
        await trio.sleep(0.05)
        assert await on.plane.calls.order("test", "list_loras") == [[]]


async def test_the_second_load_and_the_second_unload_are_refused() -> None:
    async with stage(max_loras=2, ranks=2) as on:
        body = {"lora_name": "sql", "lora_path": "org/sql"}
        loads = [on.begin(LOAD, body) for _ in range(3)]
        statuses = sorted([(await call.finished()).status for call in loads])
        assert statuses == [200, 400, 400]
        unloads = [on.begin(UNLOAD, {"lora_name": "sql"}) for _ in range(3)]
        statuses = sorted([(await call.finished()).status for call in unloads])
        assert statuses == [200, 404, 404]


async def test_one_that_was_evicted_is_loaded_again_and_can_be_unloaded() -> None:
    async with stage(max_loras=1) as on:
        await load(on, "a", "org/a")
        said = await on.text(model="a")
        await load(on, "b", "org/b")
        assert await on.text(model="a") == said
        await on.text(model="b")
        await unload(on, "a")
        await unload(on, "b")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"lora_name": "", "lora_path": "p"}, "lora_name must not be empty"),
        ({"lora_name": "a", "lora_path": ""}, "lora_path must not be empty"),
        ({"lora_name": "tiny", "lora_path": "p"}, "`tiny` conflicts with a served base model"),
        ({"lora_name": "a", "lora_path": "/etc"}, "require VLLM_RUNTIME_LORA_ALLOWED_PATH"),
        ({"lora_name": "a"}, "missing field `lora_path`"),
        ({"lora_name": 5, "lora_path": "p"}, "lora_name: invalid type: integer `5`"),
        ({"lora_name": "a", "lora_path": "p", "load_inplace": None}, "load_inplace: "),
    ],
)
async def test_loads_that_make_no_sense_reach_no_engine(body: object, complaint: str) -> None:
    async with stage(max_loras=1) as on:
        assert complaint in error_of(await on.post(LOAD, body), 400)["message"]
        assert on.client.adapters.served == ()


async def test_unloads_that_make_no_sense_are_refused() -> None:
    async with stage(max_loras=1) as on:
        await load(on)
        error = error_of(await on.post(UNLOAD, {"lora_name": ""}), 400)
        assert "'lora_name' needs to be provided" in error["message"]
        error = error_of(await on.post(UNLOAD, {"lora_name": "sql", "lora_int_id": 9}), 400)
        assert error["param"] == "lora_int_id"
        await unload(on, lora_int_id=1)


async def test_an_engine_says_why_it_cannot_load() -> None:
    async with stage(max_loras=1, missing_loras=("org/gone",)) as on:
        body = {"lora_name": "sql", "lora_path": "org/gone"}
        error = error_of(await on.post(LOAD, body), 500)
        assert error["message"].startswith("failed to load LoRA adapter `sql`: ")
        assert "No adapter found for org/gone" in error["message"]
        assert (await on.generate()).status == 200


async def test_an_engine_without_support_says_so() -> None:
    async with stage() as on:
        for path, body in (
            (LOAD, {"lora_name": "sql", "lora_path": "p"}),
            (UNLOAD, {"lora_name": "sql"}),
        ):
            error = error_of(await on.post(path, body), 400)
            assert error["message"] == "engine was not started with LoRA enabled"


async def test_the_routes_exist_where_the_gate_is_open_alone() -> None:
    async with stage(max_loras=1) as on:
        for value, number in (("1", 2), ("True", 2), ("0", 0), ("", 0)):
            environ = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": value}
            assert len([*LoraRoutes(on.client.adapters, [], environ)]) == number
