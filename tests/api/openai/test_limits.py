"""Which requests come in, and how long they may take, through the routes."""

import logging
from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.api.openai._harness import CHAT, COMPLETIONS, JSON_TYPE, Api, chat, completion, open_api
from vllmfront.api.openai import GateLimits, ServiceOptions
from vllmfront.api.openai._edge import InferenceRoute
from vllmfront.api.openai._loop_lag import CALM_TICKS, LATE_TICKS
from vllmfront.engine import FinishReason
from vllmfront.models import ModelDescription
from vllmfront.text import Tokenizer

DONE = "data: [DONE]"


@pytest.fixture
async def small(model: ModelDescription, tokenizer: Tokenizer) -> AsyncGenerator[Api]:
    """Routes that let ten choices in."""
    async with open_api(model, tokenizer, limits=GateLimits(max_in_flight=10)) as api:
        yield api


async def test_of_a_hundred_at_once_ten_come_in_and_the_others_are_told_why(
    small: Api, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [small.post(CHAT, chat()) for _ in range(100)]
    adds = [await small.engine.receive_add() for _ in range(10)]
    refused = [call.writer for call in calls if call.writer.finished]
    full = small.metrics.gate()
    for add in adds:
        small.say(add, [500], FinishReason.LENGTH)
    served = [await call.finished() for call in calls if call.writer not in refused]

    assert await small.engine.hears_nothing_more()
    assert len(refused) == 90
    assert {writer.status for writer in served} == {200}
    assert {writer.status for writer in refused} == {503}
    for writer in refused:
        error = writer.json["error"]
        assert sorted(error) == ["code", "message", "param", "reason", "type"]
        assert error["reason"] == "queue_full"
        assert error["type"] == "ServiceUnavailableError"
        assert "10 of at most 10" in error["message"]
        assert int(writer.headers[b"retry-after"]) >= 1
    assert (full.in_flight, full.max_in_flight) == (10, 10)
    assert small.metrics.gate().in_flight == 0
    assert small.ends == {"length": 10, "refused": 90}
    assert small.metrics.refusals == {"queue_full": 90}
    [record] = [each for each in caplog.records if "Refused" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert "reason=queue_full limit=10 current=10" in record.getMessage()


async def test_long_prompts_that_come_together_do_not_all_find_room(small: Api) -> None:
    calls = [small.post(COMPLETIONS, completion("word " * 20_000)) for _ in range(12)]
    await wait_all_tasks_blocked()
    refused = [call.writer for call in calls if call.writer.finished and call.writer.status == 503]

    assert [writer.json["error"]["reason"] for writer in refused] == ["queue_full"] * 2

    for call in calls:
        call.leave()
        await call.finished()

    assert small.metrics.gate().in_flight == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(n=10, temperature=1)),
        (COMPLETIONS, completion(["a", "b", "c", "d"], n=3, temperature=1)),
    ],
)
async def test_choices_count_one_by_one(small: Api, path: str, body: dict[str, object]) -> None:
    other = small.post(CHAT, chat())
    await small.engine.receive_add()
    writer = await small.answer(path, body)

    assert writer.status == 503
    assert writer.json["error"]["reason"] == "queue_full"
    assert small.metrics.gate().in_flight == 1

    other.leave()
    await other.finished()

    assert small.metrics.gate().in_flight == 0


async def test_prompt_tokens_count_until_the_first_answer(
    model: ModelDescription, tokenizer: Tokenizer
) -> None:
    limits = GateLimits(max_queued_tokens=8)
    async with open_api(model, tokenizer, limits=limits) as api:
        first = api.post(COMPLETIONS, completion([5] * 4, stream=True))
        add = await api.engine.receive_add()
        second = api.post(COMPLETIONS, completion([5] * 50))
        other = await api.engine.receive_add()
        queued = api.metrics.gate().queued_tokens
        refused = await api.answer(COMPLETIONS, completion([5]))
        api.say(other, [500])
        await api.heard(other, 1)
        third = api.post(COMPLETIONS, completion([5]))
        await api.engine.receive_add()
        assert api.metrics.gate().queued_tokens == 5
        for call in (first, second, third):
            call.leave()
            await call.finished()

        assert add.internal_id != other.internal_id
        assert queued == 54
        assert refused.status == 503
        assert refused.json["error"]["reason"] == "too_many_queued_tokens"
        assert "54 prompt tokens wait" in refused.json["error"]["message"]
        assert api.metrics.gate().queued_tokens == 0
        assert api.metrics.refusals == {"too_many_queued_tokens": 1}


@pytest.mark.parametrize(
    ("path", "stream", "where"),
    [
        (CHAT, False, "header"),
        (CHAT, True, "field"),
        (CHAT, False, "default"),
        (COMPLETIONS, True, "header"),
        (COMPLETIONS, False, "field"),
        (COMPLETIONS, True, "default"),
    ],
)
async def test_a_deadline_ends_a_request_and_tells_its_client(
    model: ModelDescription,
    tokenizer: Tokenizer,
    path: str,
    stream: bool,
    where: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = ServiceOptions(default_timeout=0.05 if where == "default" else 1000)
    body = chat(stream=stream) if path == CHAT else completion(stream=stream)
    headers = [JSON_TYPE]
    if where == "field":
        body["timeout"] = 0.05
    elif where == "header":
        body["timeout"] = 1000
        headers.append((b"x-request-timeout", b"0.05"))
    async with open_api(model, tokenizer, options) as api:
        call = api.post(path, body, headers)
        add = await api.engine.receive_add()
        abort = await api.engine.receive_abort()
        writer = await call.finished()

        assert abort.request_ids == [add.internal_id]
        assert api.ends == {"timed_out": 1}
        assert api.client.num_in_flight == 0
    if stream:
        assert writer.status == 200
        assert writer.events[-1] == DONE
        error = writer.events[-2]["error"]
    else:
        assert writer.status == 504
        error = writer.json["error"]
    assert (error["code"], error["type"], error["reason"]) == (
        504,
        "GatewayTimeoutError",
        "timed_out",
    )
    [record] = [each for each in caplog.records if "Request ended" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert "cause=timed_out" in record.getMessage()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_what_is_still_being_encoded_at_the_deadline_is_given_up(api: Api, path: str) -> None:
    text = "word " * 400_000
    body = chat(text, timeout=0.001) if path == CHAT else completion(text, timeout=0.001)
    with trio.fail_after(10):
        writer = await api.answer(path, body)

    assert writer.status == 504
    assert writer.json["error"]["reason"] == "timed_out"
    assert await api.engine.hears_nothing_more()
    assert api.ends == {"timed_out": 1}


@pytest.mark.parametrize("value", [0, -1, 1e300, 86401])
async def test_a_time_limit_that_makes_no_sense_is_refused(api: Api, value: float) -> None:
    writer = await api.answer(CHAT, chat(timeout=value))

    assert writer.status == 400
    assert writer.json["error"]["param"] == "timeout"
    assert api.ends == {"refused": 1}
    assert not api.metrics.refusals


async def test_a_time_limit_of_another_type_is_refused_by_name(api: Api) -> None:
    writer = await api.answer(CHAT, chat(timeout="soon"))

    assert writer.status == 400
    assert "timeout: invalid type" in writer.json["error"]["message"]


async def test_a_header_that_is_no_time_is_refused_by_name(api: Api) -> None:
    writer = await api.answer(CHAT, chat(timeout=5), [JSON_TYPE, (b"x-request-timeout", b"soon")])

    assert writer.status == 400
    assert writer.json["error"]["param"] == "X-Request-Timeout"


async def test_without_a_time_limit_there_is_no_deadline(api: Api) -> None:
    call = api.post(CHAT, chat())
    await api.engine.receive_add()
    [child] = api.client._books.children.values()

    assert child.request.deadline is None

    call.leave()
    await call.finished()


async def test_an_overloaded_server_refuses_new_work_and_goes_on_with_what_it_has(
    model: ModelDescription, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_api(model, tokenizer, limits=GateLimits(max_loop_lag=1.0)) as api:
        running = api.post(CHAT, chat(stream=True))
        add = await api.next_add()
        route = api.handlers[CHAT]
        assert isinstance(route, InferenceRoute)
        for _ in range(LATE_TICKS):
            route._gate.lag.note(2.5)
        refused = [
            await api.answer(CHAT, chat()),
            await api.answer(COMPLETIONS, completion()),
            await api.answer("/tokenize", {"prompt": "a"}),
        ]
        api.say(add, [500], FinishReason.STOP)
        served = await running.finished()
        for _ in range(CALM_TICKS):
            route._gate.lag.note(0.0)
        again = await api.answer("/tokenize", {"prompt": "a"})

        assert [writer.status for writer in refused] == [503] * 3
        assert {writer.json["error"]["reason"] for writer in refused} == {"overloaded"}
        assert all(int(writer.headers[b"retry-after"]) >= 1 for writer in refused)
        assert served.events[-1] == DONE
        assert again.status == 200
        assert api.ends == {"stop": 1, "refused": 2}
        assert api.metrics.refusals == {"overloaded": 3}
    assert "reason=overloaded limit=1 current=2.5" in caplog.text
