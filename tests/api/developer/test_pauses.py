"""``/pause`` and ``/resume``: what clients of rollouts and trainers see."""

import time

import pytest
import trio

from tests.api.developer.rig import COMPLETIONS, completion, error_of, stage
from tests.api.openai._harness import PaperConnection
from vllmfront.api.developer._pauses import owner_of
from vllmfront.api.developer._question import Query
from vllmfront.api.http import Headers, HttpRequest
from vllmfront.control import ControlConfig
from vllmfront.engine import EngineClientConfig
from vllmfront.engine.pause import LeaseAction


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
async def test_abort_ends_what_runs_with_all_its_tokens(version: str) -> None:
    async with stage(vllm_version=version) as on:
        calls = [on.begin(COMPLETIONS, completion(max_tokens=5000)) for _ in range(3)]
        stream = on.begin(COMPLETIONS, completion(max_tokens=5000, stream=True))
        await on.in_flight(4)
        assert await on.done("/pause") == {"status": "paused"}
        answers = [await call.finished() for call in calls]
        events = (await stream.finished()).events

        for answer in answers:
            assert answer.status == 200
            assert answer.json["choices"][0]["finish_reason"] == "abort"
            assert answer.json["usage"]["completion_tokens"] > 0
        assert events[-2]["choices"][0]["finish_reason"] == "abort"
        assert events[-1] == "data: [DONE]"
        assert await on.get("/is_paused") == {"is_paused": True}
        assert await on.done("/resume") == {"status": "resumed"}
        assert await on.get("/is_paused") == {"is_paused": False}
        assert (await on.generate()).status == 200


async def test_wait_lets_what_runs_end_first() -> None:
    async with stage() as on:
        running = on.begin(COMPLETIONS, completion(max_tokens=60))
        await on.in_flight(1)
        pausing = on.begin("/pause", mode="wait")
        answer = await running.finished()
        assert answer.json["choices"][0]["finish_reason"] == "length"
        assert answer.json["usage"]["completion_tokens"] == 60
        assert (await pausing.finished()).json == {"status": "paused"}


async def test_keep_freezes_what_runs_and_queues_what_comes() -> None:
    async with stage() as on:
        alone = await on.text(max_tokens=40)
        running = on.begin(COMPLETIONS, completion(max_tokens=40))
        await on.in_flight(1)
        await on.done("/pause", mode="keep")
        queued = on.begin(COMPLETIONS, completion(max_tokens=3))
        await trio.sleep(0.1)
        assert not running.writer.started
        assert not queued.writer.started
        assert on.client.num_waiting == 1

        await on.done("/resume")
        assert (await running.finished()).json["choices"][0]["text"] == alone
        assert (await queued.finished()).json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("mode", ["abort", "wait"])
async def test_a_refusal_says_why_how_and_since_when(mode: str) -> None:
    async with stage() as on:
        before = time.time()
        await on.done("/pause", mode=mode, owner="trainer-1")
        answer = await on.generate()
        error = error_of(answer, 503)

        assert (error["reason"], error["mode"]) == ("paused", mode)
        assert before - 0.1 <= error["since"] <= time.time()
        assert "by trainer-1" in error["message"]
        assert int(answer.headers[b"retry-after"]) >= 1


async def test_a_second_pause_is_told_who_has_the_first() -> None:
    async with stage() as on:
        await on.done("/pause", mode="keep", owner="a")
        error = error_of(await on.post("/pause", owner="b"), 409)
        assert (error["type"], error["holder"], error["state"]) == ("Conflict", "a", "paused")
        assert abs(error["since"] - time.time()) < 10
        assert error_of(await on.post("/resume", owner="b"), 409)["holder"] == "a"
        assert error_of(await on.post("/resume"), 409)["holder"] == "a"

        widened = await on.done("/pause", owner="a", mode="wait")
        assert (widened["status"], widened["mode"]) == ("paused", "wait")
        assert error_of(await on.post("/pause", owner="a", mode="keep"), 409)["state"] == "paused"
        await on.done("/resume", force="true")
        assert (await on.generate()).status == 200


async def test_who_cannot_resume_is_told_who_can_before_anything_about_weights() -> None:
    async with stage() as on:
        await on.done("/init_weight_transfer_engine", {"init_info": {}})
        await on.done("/pause", mode="keep", owner="me")
        await on.done("/start_weight_update")

        assert error_of(await on.post("/resume", owner="other"), 409)["holder"] == "me"
        assert error_of(await on.post("/resume", owner="me"), 409)["holder"] is None


async def test_the_same_owner_waits_for_the_same_pause() -> None:
    async with stage() as on:
        running = on.begin(COMPLETIONS, completion(max_tokens=80))
        await on.in_flight(1)
        first = on.begin("/pause", mode="wait", owner="a")
        second = on.begin("/pause", mode="wait", owner="a")
        await running.finished()

        assert (await first.finished()).json == (await second.finished()).json


async def test_a_client_that_leaves_does_not_undo_its_pause() -> None:
    async with stage() as on:
        running = on.begin(COMPLETIONS, completion(max_tokens=80))
        await on.in_flight(1)
        pausing = on.begin("/pause", mode="wait")
        await trio.sleep(0.02)
        pausing.leave()
        await running.finished()

        assert error_of(await on.generate(), 503)["reason"] == "paused"
        window = on.client.pauses.window
        assert window is not None
        await window.wait_paused()
        await on.done("/resume")


async def test_a_pause_that_takes_too_long_is_a_504_and_can_be_taken_back() -> None:
    async with stage(ControlConfig(timeout=0.2)) as on:
        running = on.begin(COMPLETIONS, completion(max_tokens=30000))
        await on.in_flight(1)
        error = error_of(await on.post("/pause", mode="wait", owner="a"), 504)
        assert (error["type"], error["phase"]) == ("GatewayTimeoutError", "pause")
        assert error_of(await on.generate(), 503)["reason"] == "paused"

        await on.done("/resume", owner="a")
        assert (await on.generate()).status == 200
        assert not running.writer.started


async def test_a_lease_that_is_renewed_lasts_and_one_that_is_not_ends() -> None:
    async with stage() as on:
        asked = {"owner": "a", "mode": "keep", "lease": 0.3}
        assert (await on.done("/pause", **asked))["lease"] == 0.3
        for _ in range(4):
            await trio.sleep(0.1)
            await on.done("/renew_pause", owner="a")
        assert (await on.get("/is_paused"))["is_paused"]
        queued = on.begin(COMPLETIONS, completion())

        assert (await queued.finished()).status == 200
        assert error_of(await on.post("/renew_pause", owner="a"), 409)["state"] == "running"


async def test_a_lease_that_ran_out_may_leave_it_to_the_next() -> None:
    config = EngineClientConfig(pause_lease_action=LeaseAction.KEEP_PAUSED)
    async with stage(client_config=config) as on:
        await on.done("/pause", owner="a", mode="keep", lease=0.05)
        await trio.sleep(0.15)
        assert (await on.get("/is_paused"))["is_paused"]

        taken = await on.done("/pause", owner="b", mode="keep")
        assert taken["owner"] == "b"
        assert error_of(await on.post("/pause", owner="a"), 409)["holder"] == "b"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"mode": "later"}, "mode"),
        ({"clear_cache": "perhaps"}, "clear_cache"),
        ({"lease": "-1"}, "lease"),
        ({"lease": "soon"}, "lease"),
        ({"owner": "a\r\nERROR nobody said this"}, "owner"),
        ({"owner": "\x1b[31m"}, "owner"),
        ({"owner": "a" * 257}, "owner"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_paused(
    query: dict[str, str], param: str
) -> None:
    async with stage() as on:
        error = error_of(await on.post("/pause", **query), 400)

        assert error["param"] == param
        assert await on.get("/is_paused") == {"is_paused": False}


async def test_an_owner_may_have_any_name_that_prints() -> None:
    async with stage() as on:
        name = "Tränerin 雪 #3 " + "a" * 241
        assert (await on.done("/pause", mode="keep", owner=name))["owner"] == name
        assert error_of(await on.post("/pause", owner="b"), 409)["holder"] == name


def test_an_owner_is_the_same_in_the_header_and_in_the_query() -> None:
    def owner(headers: Headers, query: bytes = b"") -> str | None:
        request = HttpRequest(
            method="POST",
            path="/pause",
            raw_path=b"/pause",
            query=query,
            headers=headers,
            body=b"",
            connection=PaperConnection(),
        )
        return owner_of(request, Query(request))

    named = ((b"x-pause-owner", "Tränerin".encode()),)
    assert owner(named) == owner((), b"owner=Tr%C3%A4nerin") == "Tränerin"
    assert owner(named, b"owner=other") == "other"
    assert owner(((b"x-pause-owner", b""),)) is None


async def test_resume_without_a_pause_tells_the_engines_all_the_same() -> None:
    async with stage() as on:
        await on.client.call_utility("pause_scheduler", "keep", False)
        assert await on.get("/is_paused") == {"is_paused": True}
        await on.done("/resume")
        assert await on.get("/is_paused") == {"is_paused": False}


async def test_all_ranks_pause_and_requests_are_aborted_by_name() -> None:
    async with stage(ranks=2) as on:
        asked = [
            on.begin(COMPLETIONS, completion(max_tokens=30000, request_id=name, n=n, temperature=1))
            for name, n in (("one", 1), ("two", 2), ("three", 1))
        ]
        await on.in_flight(4)
        body = {"request_ids": ["cmpl-two", "nobody"]}
        assert await on.done("/abort_requests", body) == {"status": "aborted", "aborted": 1}
        answer = await asked[1].finished()
        assert [one["finish_reason"] for one in answer.json["choices"]] == ["abort", "abort"]
        await on.done("/pause", mode="keep")
        assert not asked[0].writer.started

        assert (await on.done("/abort_requests"))["aborted"] == 2
        assert (await asked[0].finished()).json["choices"][0]["finish_reason"] == "abort"
