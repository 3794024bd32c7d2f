"""Short chats whose way of asking is known begin at once; clients must not see any difference."""

import gc
from typing import Any

import pytest
import trio

from tests.api.openai._harness import CHAT, Api, PaperConnection, PaperWriter, chat
from vllmfront.api.http import Exchange, HttpRequest
from vllmfront.api.openai._exchange import StreamExchange
from vllmfront.engine import FinishReason, RequestStream
from vllmfront.engine.metrics import TerminalCause

STREAM: dict[str, Any] = {"stream": True, "max_tokens": 3}


async def make_known(api: Api, **fields: Any) -> PaperWriter:
    """Ask in this way once, and return the answer."""
    call = api.post(CHAT, chat(**STREAM, **fields))
    add = await api.next_add()
    await api.say_slowly(add, [2046, 198, 500])
    return await call.finished()


def neutral(writer: PaperWriter) -> list[Any]:
    """Return the events without what differs between two requests."""
    return [
        event if isinstance(event, str) else event | {"id": "", "created": 0}
        for event in writer.events
    ]


async def begins_at_once(api: Api, body: bytes) -> bool:
    request = HttpRequest(
        method="POST",
        path=CHAT,
        raw_path=CHAT.encode(),
        query=b"",
        headers=[(b"content-type", b"application/json")],
        body=body,
        connection=PaperConnection(),
    )
    answering = api.handlers[CHAT](request, PaperWriter())
    with trio.CancelScope() as scope:
        scope.cancel()
        await answering
    assert api.slot.load == 0
    return isinstance(answering, Exchange)


async def test_only_what_is_known_begins_at_once(api: Api) -> None:
    body = b'{"messages":[{"role":"user","content":"Hello!"}],"stream":true,"max_tokens":3}'
    await make_known(api)

    assert await begins_at_once(api, body)
    assert not await begins_at_once(api, body.replace(b":3", b":4"))
    assert not await begins_at_once(api, body.replace(b"true", b"false"))
    assert not await begins_at_once(api, body.replace(b":3", b':3,"n":2,"temperature":1'))


async def test_a_limit_that_depends_on_the_prompt_is_lowered_at_once(api: Api) -> None:
    call = api.post(CHAT, chat("one", stream=True))
    add = await api.next_add()
    api.say(add, [198], FinishReason.STOP)
    await call.finished()

    longer = b'{"messages":[{"role":"user","content":"another length"}],"stream":true}'
    assert await begins_at_once(api, longer)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"stop": ["zebra"]},
        {"return_token_ids": True},
    ],
)
async def test_the_second_answer_is_like_the_first(api: Api, fields: dict[str, Any]) -> None:
    first = await make_known(api, **fields)
    second = await make_known(api, **fields)

    assert neutral(second) == neutral(first)
    assert second.headers == first.headers
    assert api.metrics.ends[TerminalCause.LENGTH] == 2
    assert api.slot.load == 0


async def test_a_client_that_leaves_aborts_its_request_once(api: Api) -> None:
    await make_known(api)
    call = api.post(CHAT, chat(**STREAM))
    add = await api.next_add()
    await api.say_slowly(add, [2046], finish=None)
    call.leave()
    await call.done.wait()

    with trio.fail_after(5):
        assert (await api.engine.receive_abort()).request_ids == [add.internal_id]
    assert api.metrics.ends[TerminalCause.CLIENT_GONE] == 1
    assert api.client.num_in_flight == 0
    assert api.slot.load == 0


async def test_a_shutdown_ends_the_stream_with_its_reason(api: Api) -> None:
    await make_known(api)
    call = api.post(CHAT, chat(**STREAM))
    await api.next_add()
    call.leave("shutdown")
    await call.done.wait()

    error, done = call.writer.events[-2:]
    assert error["error"]["message"] == "The server is shutting down."
    assert done == "data: [DONE]"
    assert api.metrics.ends[TerminalCause.SHUTDOWN] == 1


async def test_a_lost_engine_ends_the_stream_with_its_reason(api: Api) -> None:
    await make_known(api)
    call = api.post(CHAT, chat(**STREAM))
    add = await api.next_add()
    await api.say_slowly(add, [2046], finish=None)
    api.client.report_death("it fell")
    writer = await call.finished()

    error, done = writer.events[-2:]
    assert error["error"]["code"] == 503
    assert done == "data: [DONE]"
    assert writer.finished
    assert api.slot.load == 0


async def test_without_an_engine_it_is_refused(api: Api) -> None:
    await make_known(api)
    api.client.report_death("it fell")
    writer = await api.answer(CHAT, chat(**STREAM))

    assert writer.status == 503
    assert b"retry-after" in writer.headers
    assert api.metrics.ends[TerminalCause.REFUSED] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "function", "content": "x"}]},
        {"cache_salt": ""},
        {"cache_salt": "", "messages": []},
        {"tools": []},
        {"tool_choice": "required"},
        {"messages": [{"role": "user", "content": "word " * 5000}]},
        {"timeout": -1},
    ],
)
async def test_faults_are_named_as_ever(api: Api, fields: dict[str, Any]) -> None:
    body = chat(**STREAM) | fields
    before = await api.answer(CHAT, body)
    await make_known(api)
    after = await api.answer(CHAT, body)

    assert before.status == after.status == 400
    assert before.json == after.json


async def test_an_aborted_request_keeps_its_tokens(api: Api) -> None:
    await make_known(api)
    call = api.post(CHAT, chat(**STREAM))
    add = await api.next_add()
    await api.say_slowly(add, [2046], finish=None)
    assert api.client.abort_all() == 1
    writer = await call.finished()

    assert writer.events[-2]["choices"][0]["finish_reason"] == FinishReason.ABORT.name.lower()


async def test_what_has_ended_is_freed_without_the_collector(api: Api) -> None:
    gc.collect()
    gc.disable()
    kinds = (StreamExchange, RequestStream)
    try:
        before = {id(each) for each in gc.get_objects() if type(each) in kinds}
        for _ in range(3):
            await make_known(api)
        await trio.testing.wait_all_tasks_blocked()
        after = [each for each in gc.get_objects() if type(each) in kinds]

        assert [each for each in after if id(each) not in before] == []
    finally:
        gc.enable()
