"""What the official client gets for chats that the model knows by heart."""

import asyncio
from collections.abc import Iterable

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.end_to_end.chats import CHATS, EMOJI, FRANCE, Chat, prompt_of
from tests.end_to_end.rig import Server

pytestmark = pytest.mark.engine

each_chat = pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.name)


def joined(deltas: Iterable[str | None]) -> str:
    """Join what was streamed; no half of a character may be among it."""
    parts = [delta or "" for delta in deltas]
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)
    return "".join(parts)


def text_of(chunks: Iterable[ChatCompletionChunk]) -> str:
    return joined(choice.delta.content for chunk in chunks for choice in chunk.choices)


def test_health_says_when_an_answer_can_be_had(server: Server) -> None:
    assert server.first_health == 503
    assert server.health() == 200


@each_chat
def test_a_chat_is_answered_word_for_word(server: Server, chat: Chat) -> None:
    with server.openai() as client:
        whole = client.chat.completions.create(**chat.request)
        chunks = list(client.chat.completions.create(**chat.request, stream=True))

    assert whole.choices[0].message.content == chat.answer
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason == "stop"
    assert text_of(chunks) == chat.answer
    assert len(chunks) > 3
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("chat", [FRANCE, EMOJI], ids=lambda chat: chat.name)
def test_a_completion_goes_on_word_for_word(server: Server, chat: Chat) -> None:
    prompt = prompt_of(chat.messages[0]["content"])
    with server.openai() as client:
        whole = client.completions.create(
            model="tiny", prompt=prompt, temperature=0, max_tokens=200
        )
        chunks = list(
            client.completions.create(
                model="tiny", prompt=prompt, temperature=0, max_tokens=200, stream=True
            )
        )

    assert whole.choices[0].text == chat.answer
    assert whole.choices[0].finish_reason == "stop"
    assert joined(choice.text for chunk in chunks for choice in chunk.choices) == chat.answer


def test_concurrent_answers_do_not_mix(server: Server) -> None:
    async def whole(client: openai.AsyncOpenAI, chat: Chat) -> str | None:
        answer = await client.chat.completions.create(**chat.request)
        content: str | None = answer.choices[0].message.content
        return content

    async def streamed(client: openai.AsyncOpenAI, chat: Chat) -> str:
        stream = await client.chat.completions.create(**chat.request, stream=True)
        return text_of([chunk async for chunk in stream])

    async def completed(client: openai.AsyncOpenAI, chat: Chat) -> str:
        prompt = prompt_of(chat.messages[0]["content"])
        answer = await client.completions.create(
            model="tiny", prompt=prompt, temperature=0, max_tokens=200
        )
        return answer.choices[0].text

    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(
                *(whole(client, chat) for chat in CHATS),
                *(streamed(client, chat) for chat in CHATS),
                completed(client, FRANCE),
            )

    expected = [chat.answer for chat in CHATS]

    assert asyncio.run(ask()) == [*expected, *expected, FRANCE.answer]


def test_one_model_is_listed(server: Server) -> None:
    with server.openai() as client:
        models = client.models.list().data

    assert [model.id for model in models] == ["tiny"]


def test_usage_comes_last_where_it_is_asked_for(server: Server) -> None:
    with server.openai() as client:
        whole = client.chat.completions.create(**FRANCE.request)
        *chunks, last = client.chat.completions.create(
            **FRANCE.request, stream=True, stream_options={"include_usage": True}
        )

    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens > 0
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_length_is_kept(server: Server) -> None:
    with server.openai() as client:
        chat = client.chat.completions.create(**FRANCE.request, max_tokens=5)
        text = client.completions.create(
            model="tiny", prompt="x", max_tokens=7, extra_body={"ignore_eos": True}
        )

    assert chat.choices[0].finish_reason == text.choices[0].finish_reason == "length"
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 5
    assert FRANCE.answer.startswith(chat.choices[0].message.content or "?")
    assert text.usage is not None
    assert text.usage.completion_tokens == 7


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("included", "end"), [(False, ""), (True, "capital of")])
def test_a_stop_string_ends_the_text(
    server: Server, streaming: bool, included: bool, end: str
) -> None:
    request = {
        **FRANCE.request,
        "stop": ["Rome", "capital of"],
        "extra_body": {"include_stop_str_in_output": included},
    }
    with server.openai() as client:
        if streaming:
            chunks = list(client.chat.completions.create(**request, stream=True))
            text, reason = text_of(chunks), chunks[-1].choices[0].finish_reason
        else:
            choice = client.chat.completions.create(**request).choices[0]
            text, reason = choice.message.content or "", choice.finish_reason

    assert text == FRANCE.answer.partition("capital of")[0] + end
    assert reason == "stop"


def test_texts_become_tokens_and_come_back(server: Server) -> None:
    text = f"{EMOJI.answer} <|im_end|>\n\tx\N{COMBINING ACUTE ACCENT} 漢字"
    tokens = server.post(
        "/tokenize", model="tiny", prompt=text, add_special_tokens=False, return_token_strs=True
    ).json()
    back = server.post("/detokenize", model="tiny", tokens=tokens["tokens"]).json()
    chat = server.post("/tokenize", model="tiny", messages=FRANCE.messages).json()
    prompt = server.post(
        "/tokenize", model="tiny", prompt=prompt_of(FRANCE.messages[0]["content"])
    ).json()

    assert back["prompt"] == text
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["max_model_len"] == 1024
    assert chat["tokens"] == prompt["tokens"]


def test_the_version_is_the_engines(server: Server) -> None:
    version = server.http.get("/version").json()

    assert version["version"].startswith(("0.32.0", "0.33.0"))
