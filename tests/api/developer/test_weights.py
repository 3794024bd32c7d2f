"""New weights by single calls, in the order of vLLM's own client; and what is refused."""

import attrs
import pytest
import trio

from tests.api.developer.rig import COMPLETIONS, Stage, completion, error_of, stage
from vllmfront.control import ControlConfig
from vllmfront.engine.pause import Hold, HoldKind, PauseMode

INIT, SHUTDOWN = "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine"
START, UPDATE, FINISH = "/start_weight_update", "/update_weights", "/finish_weight_update"
CHUNK = {"update_info": {"names": ["w"], "value": 1}}


async def refused(on: Stage, path: str, body: object, state: str) -> None:
    assert error_of(await on.post(path, body), 409)["state"] == state


async def test_a_full_cycle_changes_what_is_said() -> None:
    async with stage() as on:
        before = await on.text()
        assert await on.get("/weight_info") == {"weight_version": "default"}
        answer = await on.done(INIT, {"init_info": {"master": "x"}})
        assert answer == {"message": "Weight transfer initialized"}
        await on.done("/pause", mode="keep")
        assert await on.done(START) == {"message": "Weight update started"}
        assert await on.done(UPDATE, CHUNK) == {"message": "Weights updated"}
        finished = await on.done(FINISH, {"weight_version": "step-1"})
        assert finished == {"message": "Weight update finished"}
        await on.done("/resume")
        assert await on.text() != before
        assert await on.get("/weight_info") == {"weight_version": "step-1"}
        assert await on.done(SHUTDOWN) == {"message": "Weight transfer shut down"}


async def test_draft_weights_leave_the_answers_as_they_are() -> None:
    async with stage(draft_model=True) as on:
        before = await on.text()
        await on.done(INIT, {"init_info": {}})
        started = await on.done("/start_draft_weight_update")
        assert started == {"message": "Draft weight update started"}
        await on.done(UPDATE, CHUNK)
        await on.done(FINISH)

        assert await on.text() == before


async def test_the_border_is_inside_one_answer() -> None:
    async with stage() as on:
        await on.done(INIT, {"init_info": {}})
        asked = completion(max_tokens=60, return_weight_versions=True, return_token_ids=True)
        running = [on.begin(COMPLETIONS, asked | {"stream": stream}) for stream in (False, True)]
        await on.in_flight(2)
        await on.done("/pause", mode="keep", clear_cache="false")
        await on.update({"step": 1}, version="step-1")
        await on.done("/resume")
        whole, events = (await running[0].finished()).json, (await running[1].finished()).events

        for choice in (whole["choices"][0], events[-2]["choices"][0]):
            first, second = choice["weight_versions"]
            assert (first["version"], second["version"]) == ("default", "step-1")
            assert 0 == first["start"] < first["end"] == second["start"] < second["end"] == 60
        border = whole["choices"][0]["weight_versions"][0]["end"]
        later = (await on.done(COMPLETIONS, asked))["choices"][0]
        assert later["weight_versions"] == [{"version": "step-1", "start": 0, "end": 60}]
        assert later["token_ids"][:border] != whole["choices"][0]["token_ids"][:border]


@pytest.mark.parametrize(
    ("before", "path", "body", "state"),
    [
        ((), START, None, "uninitialized"),
        ((), UPDATE, CHUNK, "uninitialized"),
        ((INIT,), UPDATE, CHUNK, "initialized"),
        ((INIT,), FINISH, None, "initialized"),
        ((INIT, START), START, None, "started"),
        ((INIT, START), "/start_draft_weight_update", None, "started"),
        ((INIT, START), INIT, {"init_info": {}}, "started"),
        ((INIT, START, UPDATE), START, None, "updating"),
    ],
)
async def test_the_wrong_order_is_refused_and_no_engine_is_asked(
    before: tuple[str, ...], path: str, body: object, state: str
) -> None:
    async with stage() as on:
        bodies = {INIT: {"init_info": {}}, UPDATE: CHUNK}
        for each in before:
            await on.done(each, bodies.get(each))
        error = error_of(await on.post(path, body), 409)

        assert error["state"] == state
        assert "what can come next is /" in error["message"]
        assert on.plane.weights.state == state


async def test_without_the_guard_everything_is_passed_on() -> None:
    async with stage(ControlConfig(guarded=False)) as on:
        error = error_of(await on.post(UPDATE, CHUNK), 500)
        assert (error["phase"], list(error["engines"])) == ("update_weights", ["0"])
        await on.done(START)
        await on.done(UPDATE, CHUNK)
        await on.done(FINISH)


async def test_a_failure_names_rank_and_phase_and_is_recovered_from_by_the_api_alone() -> None:
    async with stage(ranks=2) as on:
        before = await on.text()
        await on.done(INIT, {"init_info": {}})
        await on.done("/pause", mode="keep")
        await on.done(START)
        # The second engine has no part in the list.
        error = error_of(await on.post(UPDATE, {"update_info": [{"a": 1}]}), 500)
        assert error["phase"] == "update_weights"
        assert list(error["engines"]) == ["1"]
        await refused(on, FINISH, None, "failed")
        await refused(on, INIT, {"init_info": {}}, "failed")
        assert "incomplete" in error_of(await on.post("/resume"), 409)["message"]
        info = await on.get("/weight_info")
        assert info["incomplete"]
        assert info["incomplete_engines"] == [0, 1]

        await on.done(SHUTDOWN)
        await on.done(INIT, {"init_info": {}})
        await on.update({"all": 2}, version="v2")
        await on.done("/resume")
        assert await on.get("/weight_info") == {"weight_version": "v2"}
        assert await on.text() != before


async def test_an_update_without_weights_can_be_given_up_for_the_old_ones() -> None:
    async with stage() as on:
        before = await on.text()
        await on.done(INIT, {"init_info": {}})
        await on.done("/pause", mode="keep")
        await on.done(START)
        assert error_of(await on.post("/resume"), 409)["state"] == "started"
        await on.done(SHUTDOWN)
        await on.done("/resume")

        assert await on.text() == before


async def test_a_trainer_that_was_killed_in_an_update_is_followed_by_another() -> None:
    async with stage() as on:
        await on.done(INIT, {"init_info": {}})
        await on.done("/pause", mode="keep", owner="first")
        await on.done(START)
        await on.done(UPDATE, CHUNK)
        assert error_of(await on.post("/resume", owner="first"), 409)["state"] == "updating"

        await on.done(SHUTDOWN)
        await on.done(INIT, {"init_info": {}})
        await on.update({"again": 1}, version="v1")
        await on.done("/resume", owner="first")
        assert (await on.generate()).status == 200


async def test_an_owner_whose_pause_is_gone_does_not_touch_engines_that_generate() -> None:
    async with stage() as on:
        before = await on.text()
        await on.done(INIT, {"init_info": {}})
        await on.done("/pause", mode="keep", owner="first")
        await on.done("/resume", owner="first")
        error = error_of(await on.post(START, owner="first"), 409)
        assert error["state"] == "running"
        assert "no pause by first in force" in error["message"]
        await on.done("/pause", mode="keep", owner="second")
        assert error_of(await on.post(START, owner="first"), 409)["holder"] == "second"

        await on.done(START, owner="second")
        assert error_of(await on.post(UPDATE, CHUNK, owner="first"), 409)["holder"] == "second"
        assert error_of(await on.post(FINISH, owner="first"), 409)["holder"] == "second"
        await on.done(SHUTDOWN)
        await on.done("/resume", owner="second")
        assert await on.text() == before


async def test_an_update_while_the_weights_sleep_is_refused() -> None:
    async with stage() as on:
        await on.done(INIT, {"init_info": {}})
        hold = Hold(
            kind=HoldKind.SLEEP,
            mode=PauseMode.ABORT,
            since=trio.current_time(),
            wall=0.0,
            asleep=frozenset({"weights", "kv_cache"}),
        )
        on.client.gate.close(hold)
        await refused(on, START, None, "sleeping")

        on.client.gate.close(attrs.evolve(hold, asleep=frozenset({"kv_cache"})))
        await on.done(START)


async def test_other_calls_about_weights() -> None:
    async with stage(ranks=2) as on:
        named = await on.done("/update_weight_version", {"new_version": "v9"})
        assert named == {"success": True, "new_version": "v9"}
        assert await on.get("/weight_info") == {"weight_version": "v9"}
        assert await on.get("/get_world_size") == {"world_size": 2}
        assert await on.get("/get_world_size", include_dp="false") == {"world_size": 1}
        answer = error_of(await on.post("/weight_checker", {"action": "checksum"}), 500)
        assert "Duplicate weight checksum keys" in answer["message"]


async def test_weights_are_compared_with_checksums_and_reset() -> None:
    async with stage() as on:
        sums = (await on.done("/weight_checker", {"action": "checksum"}))["checksums"]
        same = {"action": "compare", "baseline": sums}
        assert await on.done("/weight_checker", same) == {"match": True, "mismatches": []}
        assert await on.done("/weight_checker", {"action": "reset"}) == {"status": "reset"}
        compared = await on.done("/weight_checker", same)
        assert compared == {"match": False, "mismatches": ["token_source"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (INIT, None),
        (INIT, {}),
        (INIT, {"init_info": []}),
        (INIT, []),
        (UPDATE, {"update_info": "x"}),
        (UPDATE, {"update_info": [1]}),
        (FINISH, {"weight_version": 3}),
        ("/update_weight_version", {"new_version": ""}),
        ("/weight_checker", {"action": "look"}),
        ("/weight_checker", {"action": "compare"}),
        ("/abort_requests", {"request_ids": [1]}),
    ],
)
async def test_bodies_that_make_no_sense_are_refused(path: str, body: object) -> None:
    async with stage() as on:
        assert error_of(await on.post(path, body), 400)["type"] == "Bad Request"


async def test_engines_that_differ_are_not_mixed_up() -> None:
    async with stage(ranks=2) as on:
        await on.client.call_utility("set_weight_version", "odd", ranks=[1])
        error = error_of(await on.begin("/weight_info", method="GET").finished(), 409)

        assert "engine 0: default, engine 1: odd" in error["message"]
