import array
from typing import Any

import pytest

from tests.text._requests import MAX_MODEL_LEN, VOCAB_SIZE, completion
from vllmfront.errors import RequestRejected
from vllmfront.text import (
    SamplingRequest,
    Surface,
    fit_prompt,
    reject_empty_prompt,
)

TOO_LONG = (
    "This model's maximum context length is 1024 tokens. However, your prompt contains {} input"
    " tokens, which exceeds this limit even without any output tokens. Please reduce the length of"
    " the input prompt."
)
FULL = (
    "This model's maximum context length is 1024 tokens. However, your prompt fills it with 1024"
    " input tokens, leaving no room for output tokens. Please reduce the length of the input"
    " prompt."
)


def fit(ids: Any, request: SamplingRequest) -> list[int]:
    return fit_prompt(ids, request, max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [5, 6, 7, 8, 9]),
        ({"truncate_prompt_tokens": 3}, [7, 8, 9]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, [7, 8, 9]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [5, 6, 7]),
        ({"truncate_prompt_tokens": 1024}, [5, 6, 7, 8, 9]),
        ({"truncate_prompt_tokens": -1}, [5, 6, 7, 8, 9]),
        ({"truncate_prompt_tokens": 0}, []),
        ({"truncate_prompt_tokens": 0, "truncation_side": "right"}, []),
    ],
)
def test_truncation(fields: dict[str, Any], expected: list[int]) -> None:
    assert fit([5, 6, 7, 8, 9], completion(**fields)) == expected
    assert fit(array.array("I", [5, 6, 7, 8, 9]), completion(**fields)) == expected


def test_minus_one_leaves_room_for_one_token() -> None:
    assert len(fit([5] * 2000, completion(truncate_prompt_tokens=-1))) == MAX_MODEL_LEN - 1


@pytest.mark.parametrize(
    ("ids", "fields", "message", "param"),
    [
        ([5] * 1025, {}, TOO_LONG.format(1025), "input_tokens"),
        ([5] * 1024, {}, FULL, "input_tokens"),
        ([5] * 2000, {"truncate_prompt_tokens": 1024}, FULL, "input_tokens"),
        (
            [5],
            {"truncate_prompt_tokens": 1025},
            (
                "truncate_prompt_tokens=1025 cannot be greater than max_model_len = 1024."
                " Please request a smaller truncation size."
            ),
            None,
        ),
        (
            [5000, 6, -1, 5000],
            {},
            "token_id(s) [5000, -1, 5000] in prompt are out of vocabulary. Vocabulary size: 2048",
            None,
        ),
    ],
)
def test_prompts_that_do_not_fit(
    ids: list[int], fields: dict[str, Any], message: str, param: str | None
) -> None:
    with pytest.raises(RequestRejected) as caught:
        fit(ids, completion(**fields))

    assert (caught.value.message, caught.value.param) == (message, param)


def test_an_unknown_id_is_told_before_the_length_and_in_a_short_message() -> None:
    with pytest.raises(RequestRejected) as caught:
        fit([9999] * 100_000, completion())

    assert caught.value.message.startswith("token_id(s) [9999, 9999,")
    assert len(caught.value.message) < 10_000


@pytest.mark.parametrize(
    ("surface", "given", "message"),
    [
        (Surface.CHAT, False, "text request `id` must contain at least one prompt token ID"),
        (Surface.COMPLETION, True, "text request `id` must contain at least one prompt token ID"),
        (Surface.COMPLETION, False, "generate request `id` has an empty prompt_token_ids"),
    ],
)
def test_empty_prompts(surface: Surface, given: bool, message: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        reject_empty_prompt(surface, "id", given_as_ids=given)

    assert caught.value.message == message


def test_known_ids_are_not_looked_at_again() -> None:
    request = SamplingRequest(surface=Surface.CHAT)

    with pytest.raises(RequestRejected):
        fit_prompt([5000], request, max_model_len=10, vocab_size=100)
    assert fit_prompt([5000], request, max_model_len=10, vocab_size=100, known=True) == [5000]
