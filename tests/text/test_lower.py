"""What the peer sends to its engine, and what it refuses on the way there."""

from typing import Any

import pytest

from tests.text._requests import DEFAULTS, chat, completion, lower
from vllmfront.engine import RepetitionDetection, SamplingParams
from vllmfront.errors import RequestRejected
from vllmfront.models import GenerationDefaults
from vllmfront.text import SamplingLimits, SamplingRequest, Surface


def complaint(request: SamplingRequest, **options: Any) -> str:
    with pytest.raises(RequestRejected) as caught:
        lower(request, **options)
    return caught.value.message


def test_unset_values_come_from_the_generation_config() -> None:
    params = lower(chat(max_tokens=None))

    assert params == SamplingParams(
        temperature=0.6000000238418579,
        top_p=0.949999988079071,
        top_k=20,
        max_tokens=1009,
        stop_token_ids=(2039,),
        eos_token_id=2041,
        all_stop_token_ids=(2039, 2041),
    )


def test_greedy_does_not_reset_the_rest() -> None:
    params = lower(chat(temperature=0))

    assert (params.temperature, params.top_p, params.top_k) == (0.0, 0.949999988079071, 20)


def test_neutral_defaults_keep_the_eos_ids() -> None:
    params = lower(chat(), defaults=DEFAULTS.neutral())

    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert params.stop_token_ids == (2039,)


def test_every_default_is_used() -> None:
    defaults = GenerationDefaults(
        min_p=0.1,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        max_new_tokens=50,
        top_k=-1,
    )
    params = lower(chat(max_tokens=None), defaults=defaults)

    assert params.min_p == 0.10000000149011612
    assert params.repetition_penalty == 1.2999999523162842
    assert (params.frequency_penalty, params.presence_penalty) == (0.5, 0.25)
    assert (params.max_tokens, params.top_k) == (50, 0)
    assert lower(chat(max_tokens=90), defaults=defaults).max_tokens == 90
    assert lower(completion(max_tokens=None), defaults=defaults).max_tokens == 16


def test_the_operators_cap_holds_whatever_is_asked_for() -> None:
    capped = GenerationDefaults(max_new_tokens=80).overridden({"max_new_tokens": 12}, "override")

    assert lower(chat(max_tokens=None), defaults=capped).max_tokens == 12
    assert lower(chat(max_tokens=90), defaults=capped).max_tokens == 12
    assert lower(chat(max_tokens=5), defaults=capped).max_tokens == 5
    assert lower(completion(max_tokens=None), defaults=capped).max_tokens == 12


def test_floats_are_rounded_to_32_bits() -> None:
    params = lower(completion(temperature=0.7, top_p=0.123456789, min_p=0.05))

    assert params.temperature == 0.699999988079071
    assert params.top_p == 0.12345679104328156
    assert params.min_p == 0.05000000074505806


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (chat(max_tokens=5000), 1009),
        (chat(max_tokens=3, max_completion_tokens=5), 5),
        (chat(max_tokens=5, max_completion_tokens=3), 3),
        (completion(max_tokens=None), 16),
        (completion(max_tokens=0, echo=True), 1),
        (SamplingRequest(surface=Surface.CHAT), 1009),
    ],
)
def test_max_tokens(request_: SamplingRequest, expected: int) -> None:
    assert lower(request_).max_tokens == expected


@pytest.mark.parametrize(
    ("fields", "stops", "eos", "union"),
    [
        ({}, [2039], 2041, [2039, 2041]),
        ({"stop_token_ids": [5, 5, 7]}, [5, 5, 7, 2039], 2041, [5, 7, 2039, 2041]),
        ({"stop_token_ids": [2041, 2039, 3]}, [2041, 2039, 3], 2041, [3, 2039, 2041]),
        ({"ignore_eos": True}, [], None, [2039, 2041]),
        ({"ignore_eos": True, "stop_token_ids": [2041]}, [2041], None, [2039, 2041]),
    ],
)
def test_what_ends_a_text(
    fields: dict[str, Any], stops: list[int], eos: int | None, union: list[int]
) -> None:
    params = lower(chat(**fields))

    assert (params.stop_token_ids, params.eos_token_id, params.all_stop_token_ids) == (
        tuple(stops),
        eos,
        tuple(union),
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["foo", "bar"], [[69, 833], [65, 297], [283, 297]]),
        (["hello world"], [[261, 75, 320, 307, 277, 679], [922, 75, 320, 307, 277, 679]]),
        ([" The", "The"], [[338], [371], [338], [371]]),
        (["  foo"], [[69, 833]]),
        (["a"] * 129, [[64], [260]]),
        ([], None),
    ],
)
def test_bad_words(words: list[str], expected: list[list[int]] | None) -> None:
    assert lower(chat(bad_words=words)).bad_words_token_ids == expected
    assert lower(completion(bad_words=words)).bad_words_token_ids is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "bad_words cannot contain an empty string."),
        ([" \n"], "bad_words entries must tokenize to at least one token."),
        (
            [f"w{i}" for i in range(129)],
            "Too many bad words after tokenization: 129. The max number is 128.",
        ),
        (["word " * 2000], "Too many total bad word tokens: 4000. The max is 1024."),
    ],
)
def test_bad_words_have_limits(words: list[str], message: str) -> None:
    assert complaint(chat(bad_words=words)) == message


@pytest.mark.parametrize(
    ("request_", "logprobs", "prompt_logprobs"),
    [
        (chat(logprobs=True), 0, None),
        (chat(logprobs=True, top_logprobs=5), 5, None),
        (chat(logprobs=False, top_logprobs=0), None, None),
        (chat(echo=True), None, 0),
        (chat(echo=True, logprobs=True, top_logprobs=2), 2, 2),
        (chat(echo=True, logprobs=True, top_logprobs=2, prompt_logprobs=3), 2, 3),
        (chat(echo=True, logprobs=True, stream=True), 0, None),
        (chat(logprobs=True, logprob_token_ids=[]), 0, None),
        (chat(logprobs=True, top_logprobs=5, logprob_token_ids=[1, 2]), None, None),
        (completion(logprobs=0), 0, None),
        (completion(echo=True), None, None),
        (completion(echo=True, logprobs=2), 2, 2),
        (completion(echo=True, logprobs=2, prompt_logprobs=0), 2, 0),
        (completion(echo=True, logprobs=2, logprob_token_ids=[3]), None, 2),
        (completion(echo=True, logprobs=2, stream=True), 2, None),
    ],
)
def test_logprob_counts(
    request_: SamplingRequest, logprobs: int | None, prompt_logprobs: int | None
) -> None:
    params = lower(request_)

    assert (params.logprobs, params.prompt_logprobs) == (logprobs, prompt_logprobs)


def test_without_a_cap_all_logprobs_may_be_asked_for() -> None:
    limits = SamplingLimits(max_logprobs=-1)

    assert lower(completion(logprobs=-1), limits=limits).logprobs == -1
    assert lower(completion(prompt_logprobs=2048), limits=limits).prompt_logprobs == 2048
    assert "2048" in complaint(completion(logprobs=2049), limits=limits)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            chat(logprobs=True, top_logprobs=-1),
            "requested logprobs of 2048, which is greater than max allowed: 20",
        ),
        (
            completion(prompt_logprobs=50, logprobs=51),
            "requested logprobs of 51, which is greater than max allowed: 20",
        ),
        (
            chat(prompt_logprobs=21),
            "requested prompt_logprobs of 21, which is greater than max allowed: 20",
        ),
        (
            chat(logprobs=True, logprob_token_ids=[1] * 200),
            "requested logprob_token_ids of length 200, which is greater than max allowed: 128",
        ),
        (
            chat(min_tokens=2000, max_tokens=3000),
            (
                "`min_tokens` must be less than or equal to `max_tokens`,"
                " got min_tokens=2000, max_tokens=1009"
            ),
        ),
        (
            completion(min_tokens=17, max_tokens=None),
            (
                "`min_tokens` must be less than or equal to `max_tokens`,"
                " got min_tokens=17, max_tokens=16"
            ),
        ),
        (completion(temperature=3), "temperature must be in [0, 2], got 3"),
        (completion(temperature=-0.1), "temperature must be in [0, 2], got -0.1"),
        (completion(temperature=1e39), "temperature must be a finite number, got inf"),
        (completion(temperature=float("nan")), "temperature must be a finite number, got NaN"),
        (completion(top_p=0), "top_p must be in (0, 1], got 0"),
        (completion(min_p=2), "min_p must be in [0, 1], got 2"),
        (completion(frequency_penalty=5), "frequency_penalty must be in [-2, 2], got 5"),
        (completion(presence_penalty=5), "presence_penalty must be in [-2, 2], got 5"),
        (completion(repetition_penalty=-3), "repetition_penalty must be in (0, inf), got -3"),
        (chat(repetition_penalty=0), "repetition_penalty must be in (0, inf), got 0"),
        (chat(top_k=-2), "top_k: top_k must be -1, 0, or a positive integer, got -2"),
        (
            chat(thinking_token_budget=-2),
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
        ),
        (
            chat(stop_token_ids=[5000]),
            "token_id(s) [5000] in stop_token_ids are out of vocabulary. Vocabulary size: 2048",
        ),
        (
            chat(logit_bias={"5000": 1}),
            "token_id(s) [5000] in logit_bias are out of vocabulary. Vocabulary size: 2048",
        ),
        (
            chat(logprobs=True, logprob_token_ids=[9, 5000, 2048]),
            (
                "token_id(s) [5000, 2048] in logprob_token_ids are out of vocabulary."
                " Vocabulary size: 2048"
            ),
        ),
        (
            chat(allowed_token_ids=[5000]),
            "token_id(s) [5000] in allowed_token_ids are out of vocabulary. Vocabulary size: 2048",
        ),
        (chat(allowed_token_ids=[]), "allowed_token_ids should not be empty"),
        (
            chat(repetition_detection=RepetitionDetection(max_pattern_size=5, min_count=1)),
            "invalid repetition detection params: `min_count` must be at least 2, got min_count=1",
        ),
        (
            chat(
                repetition_detection=RepetitionDetection(
                    max_pattern_size=5, min_pattern_size=9, min_count=2
                )
            ),
            (
                "invalid repetition detection params: `min_pattern_size` must be less than or"
                " equal to `max_pattern_size`, got min_pattern_size=9, max_pattern_size=5"
            ),
        ),
        (chat(n=2, temperature=0), "n must be 1 when using greedy sampling, got 2."),
        (completion(logit_bias={"1": float("nan")}), "logit_bias must hold finite numbers."),
    ],
)
def test_what_is_refused(request_: SamplingRequest, message: str) -> None:
    assert complaint(request_) == message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"logprobs": 50}, {"min_tokens": 9}),
        ({"min_tokens": 9}, {"temperature": 3}),
        ({"temperature": 3}, {"stop_token_ids": [9999]}),
        ({"stop_token_ids": [9999]}, {"logit_bias": {"9999": 1}}),
        ({"stop_token_ids": [9999]}, {"allowed_token_ids": []}),
    ],
)
def test_the_first_fault_is_told(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert complaint(completion(**first, **second)) == complaint(completion(**first))


def test_the_rest_is_passed_on() -> None:
    detection = RepetitionDetection(max_pattern_size=5, min_count=2)
    params = lower(
        chat(
            n=2,
            seed=-(1 << 63),
            min_tokens=2,
            logit_bias={"1": 300, "2": -150.5, "01": 4},
            allowed_token_ids=[1, 2],
            logprobs=True,
            logprob_token_ids=[3],
            thinking_token_budget=5,
            repetition_detection=detection,
            watermarking=False,
            stream_interval=3,
            response_format={"type": "json_object"},
            vllm_xargs={"a": None, "kv_transfer_params": 1},
            kv_transfer_params={"do": True},
            ec_transfer_params={"e": 1},
        )
    )

    assert (params.n, params.seed, params.min_tokens) == (2, -(1 << 63), 2)
    assert params.logit_bias == {1: 4.0, 2: -100.0}
    assert (params.allowed_token_ids, params.logprob_token_ids) == ([1, 2], [3])
    assert params.thinking_token_budget == 5
    assert params.repetition_detection == detection
    assert params.watermarking is False
    assert params.stream_interval == 3
    assert params.structured_outputs is not None
    assert params.extra_args == {
        "a": None,
        "kv_transfer_params": {"do": True},
        "ec_transfer_params": {"e": 1},
    }


def test_empty_values_that_mean_nothing() -> None:
    detection = RepetitionDetection(max_pattern_size=0, min_count=2)
    params = lower(chat(thinking_token_budget=-1, repetition_detection=detection, vllm_xargs={}))

    assert params.thinking_token_budget is None
    assert params.repetition_detection is None
    assert params.extra_args == {}
    assert lower(chat()).extra_args is None
    assert lower(chat(logit_bias={})).logit_bias == {}


def test_further_eos_ids_stop_in_ascending_order() -> None:
    params = lower(
        chat(stop_token_ids=[2040]), defaults=GenerationDefaults(eos_token_ids=(2041, 2039, 2036))
    )

    assert params.stop_token_ids == (2040, 2036, 2039)
