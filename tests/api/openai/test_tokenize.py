import pytest

from tests.api.openai._harness import Api

TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
HELLO = {"role": "user", "content": "Hello!"}


async def test_a_prompt_becomes_ids(api: Api) -> None:
    writer = await api.answer(TOKENIZE, {"prompt": "Hello world"})

    assert writer.body == (
        b'{"count":4,"max_model_len":1024,"tokens":[1853,307,277,679],"token_strs":null}'
    )


async def test_strings_are_the_vocabularys_own(api: Api) -> None:
    writer = await api.answer(TOKENIZE, {"prompt": "Hello wörld", "return_token_strs": True})

    assert writer.json["token_strs"] == ["Hello", "Ġw", "Ã", "¶", "r", "ld"]


async def test_a_chat_is_rendered_first(api: Api) -> None:
    writer = await api.answer(TOKENIZE, {"messages": [HELLO], "prompt": "ignored"})
    shorter = await api.answer(TOKENIZE, {"messages": [HELLO], "add_generation_prompt": False})

    assert writer.json["count"] == 15
    assert shorter.json["tokens"] == [2040, 367, 81, 198, 1853, 0, 2041, 198]


@pytest.mark.parametrize("body", [{}, {"prompt": ["a"]}, {"prompt": 1}, {"messages": 1}])
async def test_what_has_neither_form_is_refused(api: Api, body: dict[str, object]) -> None:
    writer = await api.answer(TOKENIZE, body)

    assert writer.status == 400
    assert "untagged enum TokenizeRequest" in writer.json["error"]["message"]


async def test_an_empty_prompt_has_no_ids(api: Api) -> None:
    writer = await api.answer(TOKENIZE, {"prompt": ""})

    assert writer.json["tokens"] == []


async def test_ids_become_text_with_special_tokens_and_without_unknown_ids(api: Api) -> None:
    writer = await api.answer(DETOKENIZE, {"tokens": [2040, 1853, 99999]})

    assert writer.body == b'{"prompt":"<|im_start|>Hello"}'


@pytest.mark.parametrize("path", [TOKENIZE, DETOKENIZE])
async def test_unknown_models_are_not_found(api: Api, path: str) -> None:
    writer = await api.answer(path, {"model": "x", "prompt": "a", "tokens": [1]})

    assert writer.status == 404


async def test_negative_ids_are_a_bad_request(api: Api) -> None:
    writer = await api.answer(DETOKENIZE, {"tokens": [-1]})

    assert writer.json["error"]["message"].endswith(
        "tokens[0]: invalid value: integer `-1`, expected u32"
    )


async def test_long_texts_are_worked_off_in_threads(api: Api) -> None:
    text = "word " * 50_000
    writer = await api.answer(TOKENIZE, {"prompt": text})
    back = await api.answer(DETOKENIZE, {"tokens": writer.json["tokens"]})

    assert back.json["prompt"] == text


NEITHER = "data did not match any variant of untagged enum TokenizeRequest"


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"model": "other"}, 400, NEITHER),
        ({"model": "other", "messages": [{"role": "user"}]}, 400, NEITHER),
        ({"messages": [HELLO], "tools": [{"type": "x"}]}, 400, NEITHER),
        ({"model": "other", "messages": []}, 400, "messages cannot be empty"),
        ({"model": "other", "messages": [], "prompt": "x"}, 400, "messages cannot be empty"),
        ({"model": "other", "messages": [HELLO], "chat_template": "x"}, 404, "`other`"),
        ({"model": "other", "prompt": "x"}, 404, "`other`"),
        ({"model": "", "prompt": "x"}, 404, "``"),
    ],
)
async def test_faults_are_told_in_the_order_of_the_peer(
    api: Api, body: dict[str, object], status: int, told: str
) -> None:
    writer = await api.answer("/tokenize", body)

    assert writer.status == status
    assert told in writer.json["error"]["message"]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({"prompt": "x", "messages": [{"role": "user"}]}, 1),
        ({"prompt": 5, "messages": [HELLO]}, 15),
        ({"messages": [HELLO], "tools": []}, 15),
    ],
)
async def test_the_form_that_fits_counts(api: Api, body: dict[str, object], count: int) -> None:
    writer = await api.answer("/tokenize", body)

    assert writer.json["count"] == count
