"""Options of requests, as a real engine takes them."""

import json
import re
from typing import Any

import openai
import pytest

from tests.end_to_end.chats import FRANCE, prompt_of
from tests.end_to_end.rig import Server

pytestmark = pytest.mark.engine

PROMPT = prompt_of("What is the capital of France?")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def test_seeds_decide_the_choices(server: Server) -> None:
    seeded: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me something else."}],
        "n": 2,
        "temperature": 1,
        "max_tokens": 16,
        "extra_body": {"ignore_eos": True},
    }
    with server.openai() as client:
        first, again, other = (
            [choice.message.content for choice in answer.choices]
            for answer in (
                client.chat.completions.create(**seeded, seed=seed) for seed in (7, 7, 8000)
            )
        )
        streamed = ["", ""]
        for chunk in client.chat.completions.create(**seeded, seed=7, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""

    assert first == again == streamed
    assert first != other
    assert first[0] != first[1]


def test_each_prompt_has_its_choices(server: Server) -> None:
    request: dict[str, Any] = {"model": "tiny", "temperature": 1, "seed": 3, "max_tokens": 8}
    with server.openai() as client:
        both = client.completions.create(**request, prompt=[PROMPT, "x"], n=2)
        alone = client.completions.create(**request, prompt="x", n=2)

    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in both.choices[2:]] == [c.text for c in alone.choices]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_chat_comes_with_logprobs(server: Server, streaming: bool) -> None:
    request = {**FRANCE.request, "logprobs": True, "top_logprobs": 3}
    with server.openai() as client:
        if streaming:
            chunks = list(client.chat.completions.create(**request, stream=True))
            logprobs = [
                choice.logprobs
                for chunk in chunks
                for choice in chunk.choices
                if choice.logprobs is not None
            ]
        else:
            logprobs = [client.chat.completions.create(**request).choices[0].logprobs]
    tokens = [token for each in logprobs for token in each.content]

    said = b"".join(bytes(token.bytes) for token in tokens).decode()
    assert said.removesuffix("<|im_end|>") == FRANCE.answer
    assert -5.0 < sum(token.logprob for token in tokens) < 0.0
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob
        assert token.top_logprobs[0].bytes == token.bytes


@pytest.mark.parametrize("streaming", [False, True])
def test_a_completion_comes_with_logprobs(server: Server, streaming: bool) -> None:
    request: dict[str, Any] = {
        "model": "tiny",
        "prompt": PROMPT,
        "temperature": 0,
        "max_tokens": 200,
        "logprobs": 2,
    }
    with server.openai() as client:
        if streaming:
            chunks = list(client.completions.create(**request, stream=True))
            logprobs = [
                choice.logprobs
                for chunk in chunks
                for choice in chunk.choices
                if choice.logprobs is not None
            ]
        else:
            logprobs = [client.completions.create(**request).choices[0].logprobs]
    tokens = [token for each in logprobs for token in each.tokens]
    values = [value for each in logprobs for value in each.token_logprobs]
    offsets = [offset for each in logprobs for offset in each.text_offset]

    assert "".join(tokens).removesuffix("<|im_end|>") == FRANCE.answer
    assert -5.0 < sum(values) < 0.0
    assert offsets == [len("".join(tokens[:index])) for index in range(len(tokens))]


def test_prompts_have_logprobs_and_ids(server: Server) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 4}
    ids = server.post("/tokenize", model="tiny", prompt=PROMPT).json()["tokens"]
    answer = server.post("/v1/completions", **body, prompt_logprobs=1, return_token_ids=True).json()
    (choice,) = answer["choices"]
    text = server.post("/detokenize", model="tiny", tokens=choice["token_ids"]).json()["prompt"]

    assert choice["prompt_token_ids"] == ids
    assert len(choice["token_ids"]) == 4
    assert text == choice["text"] == FRANCE.answer[: len(text)]
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token_id, position in zip(ids[1:], others, strict=True):
        assert position[str(token_id)]["logprob"] <= 0.0
        assert 1 in {entry["rank"] for entry in position.values()}


def test_an_echo_repeats_the_prompt(server: Server) -> None:
    with server.openai() as client:
        answer = client.completions.create(
            model="tiny", prompt="Hello", echo=True, logprobs=1, temperature=0, max_tokens=3
        )
        alone = client.completions.create(model="tiny", prompt="Hello", echo=True, max_tokens=0)
        plain = client.completions.create(model="tiny", prompt="Hello", temperature=0, max_tokens=3)
    (choice,) = answer.choices

    assert choice.text == "Hello" + plain.choices[0].text
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[:1] == [None]
    assert "".join(choice.logprobs.tokens or []) == choice.text
    assert alone.choices[0].text == "Hello"


def test_prompts_may_be_many_and_ids(server: Server) -> None:
    ids = server.post("/tokenize", model="tiny", prompt=PROMPT).json()["tokens"]
    with server.openai() as client:
        texts, one, many = (
            client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=200)
            for prompt in ([PROMPT, PROMPT], ids, [ids, ids])
        )

    assert [choice.text for choice in texts.choices] == [FRANCE.answer] * 2
    assert [choice.text for choice in one.choices] == [FRANCE.answer]
    assert [choice.text for choice in many.choices] == [FRANCE.answer] * 2
    assert texts.usage is not None
    assert texts.usage.prompt_tokens == 2 * len(ids)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_schema_is_followed(server: Server, streaming: bool) -> None:
    request = {
        **FRANCE.request,
        "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}},
    }
    with server.openai() as client:
        if streaming:
            chunks = client.chat.completions.create(**request, stream=True)
            text = "".join(
                choice.delta.content or "" for chunk in chunks for choice in chunk.choices
            )
        else:
            text = client.chat.completions.create(**request).choices[0].message.content
    answer = json.loads(text)

    assert set(answer) == {"city", "days"}
    assert len(answer["city"]) <= 8
    assert answer["days"] in {1, 2, 3}


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, r"[a-c]{3}-\d{2}"),
        ({"choice": ["Rome", "Oslo"]}, "Rome|Oslo"),
    ],
    ids=["regex", "choice"],
)
def test_a_constraint_is_followed(server: Server, constraint: dict[str, Any], pattern: str) -> None:
    with server.openai() as client:
        chat = client.chat.completions.create(
            **FRANCE.request, max_tokens=50, extra_body={"structured_outputs": constraint}
        )
        text = client.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=50,
            extra_body={"structured_outputs": constraint},
        )

    assert re.fullmatch(pattern, chat.choices[0].message.content)
    assert re.fullmatch(pattern, text.choices[0].text)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("regex", ["(a", r"(a)\1"], ids=["found by us", "found by the engine"])
def test_a_constraint_that_cannot_work_is_refused(
    server: Server, regex: str, streaming: bool
) -> None:
    request = {**FRANCE.request, "extra_body": {"structured_outputs": {"regex": regex}}}
    with server.openai() as client, pytest.raises(openai.APIError, match="regex") as caught:
        if streaming:  # what the engine finds comes as an event: the head has gone
            list(client.chat.completions.create(**request, stream=True))
        else:
            client.chat.completions.create(**request)

    assert isinstance(caught.value.body, dict)
    assert caught.value.body["code"] == 400
    assert caught.value.body["param"] == "structured_outputs"
    assert server.post("/v1/chat/completions", **FRANCE.request).status_code == 200
