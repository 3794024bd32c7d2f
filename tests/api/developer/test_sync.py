"""``POST /v1/weights/sync``: progress, and an end in any case."""

import json
from typing import Any

import trio

from tests.api.developer.rig import COMPLETIONS, Stage, completion, error_of, stage

SYNC = "/v1/weights/sync"


def events(body: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def plan(*chunks: object, **fields: object) -> dict[str, object]:
    return {"update_infos": list(chunks), "init_info": {}, "mode": "keep", **fields}


async def sync(on: Stage, body: object) -> list[tuple[str, Any]]:
    answer = await on.post(SYNC, body)
    assert answer.status == 200
    assert answer.headers[b"content-type"] == b"text/event-stream"
    return events(answer.body)


async def test_each_step_is_told_and_the_last_is_resumed() -> None:
    async with stage() as on:
        before = await on.text()
        told = await sync(on, plan({"a": 1}, {"b": 2}, weight_version="v1", owner="me"))

        assert told == [
            ("paused", {"mode": "keep", "owner": "me"}),
            ("initialized", {}),
            ("started", {"draft": False}),
            ("chunk", {"index": 1, "count": 2}),
            ("chunk", {"index": 2, "count": 2}),
            ("finished", {"weight_version": "v1"}),
            ("resumed", {"weight_version": "v1"}),
        ]
        assert await on.text() != before
        assert await on.get("/weight_info") == {"weight_version": "v1"}


async def test_a_client_that_leaves_does_not_stop_it() -> None:
    async with stage(step_time=0.05) as on:
        running = on.begin(COMPLETIONS, completion(max_tokens=10))
        await on.in_flight(1)
        call = on.begin(SYNC, plan({"a": 1}, weight_version="v1", mode="wait"))
        await trio.sleep(0.02)
        call.leave()
        await running.finished()
        assert (await on.generate_when_open()).status == 200

        assert await on.get("/weight_info") == {"weight_version": "v1"}


async def test_a_failure_with_some_of_the_weights_stays_paused_in_a_named_state() -> None:
    async with stage() as on:
        *done, (last, fields) = await sync(on, plan({"a": 1}, {}, mode="wait"))

        assert [name for name, _ in done] == ["paused", "initialized", "started", "chunk"]
        assert last == "failed"
        assert (fields["phase"], fields["state"], fields["paused"]) == ("update", "failed", True)
        assert list(fields["ranks"]) == ["0"]
        assert error_of(await on.generate(), 503)["reason"] == "paused"
        await on.done("/shutdown_weight_transfer_engine")
        owner = done[0][1]["owner"]
        told = await sync(on, plan({"a": 1}, owner=owner, mode="wait"))
        assert told[-1][0] == "resumed"


async def test_a_lease_begins_once_the_server_is_not_at_it_any_more() -> None:
    async with stage() as on:
        running = on.begin(COMPLETIONS, completion(max_tokens=100))
        await on.in_flight(1)
        told = await sync(on, plan({"a": 1}, mode="wait", lease=0.05))
        assert told[-1][0] == "resumed"
        assert (await running.finished()).status == 200

        told = await sync(on, plan({"a": 1}, {}, lease=30))
        window = on.client.pauses.window
        assert told[-1][1]["paused"]
        assert window is not None
        left = window.lease.left(trio.current_time())
        assert left is not None
        assert 20 < left <= 30


async def test_a_failure_before_any_weights_came_goes_on_with_the_old_ones() -> None:
    async with stage() as on:
        before = await on.text()
        told = await sync(on, plan({"a": 1}, draft=True))

        name, fields = told[-1]
        assert (name, fields["phase"], fields["paused"]) == ("failed", "start", False)
        assert await on.text() == before


async def test_an_order_of_others_in_between_is_a_failure_that_leaves_theirs_alone() -> None:
    async with stage() as on:
        await on.done("/init_weight_transfer_engine", {"init_info": {}})
        await on.done("/start_weight_update")
        name, fields = (await sync(on, plan({"a": 1})))[-1]

        assert (name, fields["phase"], fields["state"]) == ("failed", "start", "started")
        assert not fields["paused"]
        await on.done("/update_weights", {"update_info": {"theirs": 1}})
        await on.done("/finish_weight_update")


async def test_who_cannot_pause_is_told_at_once() -> None:
    async with stage() as on:
        await on.done("/pause", owner="a", mode="keep")

        assert error_of(await on.post(SYNC, plan({"a": 1})), 409)["holder"] == "a"


async def test_who_ends_the_pause_in_between_ends_the_update() -> None:
    async with stage() as on:
        running = on.begin(SYNC, plan(*({"n": number} for number in range(200)), owner="me"))
        while on.plane.weights.snapshot().chunks < 3:  # noqa: ASYNC110 (no event for it)
            await trio.sleep(0.001)
        await on.done("/resume", force="true")
        name, fields = events((await running.finished()).body)[-1]

        assert (name, fields["phase"]) == ("failed", "update")
        assert any(why in fields["message"] for why in ("ended the pause", "no pause by me"))


async def test_what_makes_no_sense_is_refused_before_anything_is_paused() -> None:
    async with stage() as on:
        for body in ({}, {"update_infos": 3}, {"update_infos": [1]}, plan(mode="later")):
            assert error_of(await on.post(SYNC, body), 400)["type"] == "Bad Request"
        assert await on.get("/is_paused") == {"is_paused": False}


async def test_an_owner_that_cannot_be_shown_begins_nothing() -> None:
    async with stage() as on:
        error = error_of(await on.post(SYNC, plan(owner="a\nb")), 400)

        assert error["param"] == "owner"
        assert await on.get("/is_paused") == {"is_paused": False}
