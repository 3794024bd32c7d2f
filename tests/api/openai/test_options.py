import threading
from collections.abc import AsyncGenerator

import pytest

from tests.api.openai._harness import CHAT, Api, chat, open_api
from vllmfront.api.openai import ServiceOptions
from vllmfront.chat import ChatOptions, ChatPrompt, ChatRenderer, NamedTemplates, RenderedChat
from vllmfront.engine import FinishReason, Logprobs, PrefillStats
from vllmfront.models import ModelDescription
from vllmfront.text import Tokenizer

OPTIONS = ServiceOptions(
    stream_interval=2,
    return_tokens_as_token_ids=True,
    prompt_tokens_details=True,
    per_request_metrics=True,
    log_requests=True,
)


@pytest.fixture
async def api(model: ModelDescription, tokenizer: Tokenizer) -> AsyncGenerator[Api]:
    async with open_api(model, tokenizer, OPTIONS) as opened:
        yield opened


class WatchedRenderer(ChatRenderer):
    """Remembers the threads it worked in."""

    def __init__(self) -> None:
        super().__init__(NamedTemplates("x"), options=ChatOptions(trust_request_template=True))
        self.threads: list[int] = []

    def render(self, chat: ChatPrompt) -> RenderedChat:
        self.threads.append(threading.get_ident())
        return super().render(chat)


async def test_only_templates_of_clients_keep_off_the_event_loop(api: Api) -> None:
    renderer = WatchedRenderer()
    api.slot.require().renderer = renderer

    for fields in ({}, {"chat_template": "y"}):
        call = api.post(CHAT, chat(**fields))
        add = await api.engine.receive_add()
        api.say(add, [500], FinishReason.LENGTH)
        await call.finished()

    ours = threading.get_ident()
    assert [thread == ours for thread in renderer.threads] == [True, False]


async def test_usage_tells_cached_tokens_and_times(api: Api) -> None:
    call = api.post(CHAT, chat())
    add = await api.engine.receive_add()
    api.engine.time = 1.0
    api.say_output(add, new_token_ids=[500], prefill_stats=PrefillStats(num_cached_tokens=8))
    api.engine.time = 1.5
    api.say(add, [341], FinishReason.LENGTH)
    writer = await call.finished()

    assert writer.json["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
    assert writer.json["metrics"] == {
        "time_to_first_token_ms": None,
        "generation_time_ms": 500.0,
        "queue_time_ms": None,
        "mean_itl_ms": 500.0,
        "tokens_per_second": None,
    }


async def test_metrics_come_with_the_usage_of_a_stream(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True, stream_options={"include_usage": True}))
    add = await api.engine.receive_add()
    api.engine.time = 1.0
    await api.say_slowly(add, [500, 341, 342, 64])
    writer = await call.finished()

    usage = writer.events[-2]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert usage["metrics"] == {"generation_time_ms": 0.0, "mean_itl_ms": 0.0}


async def test_the_servers_interval_holds_and_is_passed_on(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [500, 341, 342, 64])
    writer = await call.finished()

    assert add.request.sampling is not None
    texts = [event["choices"][0]["delta"].get("content") for event in writer.events[1:4]]
    assert texts == ["ult", "is for", "a"]


async def test_a_request_may_have_an_interval_of_its_own(api: Api) -> None:
    call = api.post(CHAT, chat(stream=True, stream_interval=1))
    add = await api.engine.receive_add()
    await api.say_slowly(add, [500, 341])
    writer = await call.finished()

    texts = [event["choices"][0]["delta"].get("content") for event in writer.events[1:3]]
    assert texts == ["ult", "is"]


async def test_tokens_are_named_by_their_ids_unless_a_request_objects(api: Api) -> None:
    names = []
    for fields in ({}, {"return_tokens_as_token_ids": False}):
        call = api.post(CHAT, chat(logprobs=True, **fields))
        add = await api.engine.receive_add()
        api.say_output(
            add,
            new_token_ids=[500],
            logprobs=Logprobs([[500]], [[-0.5]], [1]),
            finish_reason=FinishReason.LENGTH,
        )
        writer = await call.finished()
        names.append(writer.json["choices"][0]["logprobs"]["content"][0]["token"])

    assert names == ["token_id:500", "ult"]


async def test_each_end_is_logged_once(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    call = api.post(CHAT, chat())
    add = await api.engine.receive_add()
    api.say(add, [500], FinishReason.LENGTH)
    await call.finished()

    [record] = [r for r in caplog.records if "Request ended" in r.getMessage()]
    message = record.getMessage()
    assert "cause=length model=tiny prompt_tokens=15 output_tokens=1" in message
    assert f"engine_request_ids={add.internal_id}" in message
