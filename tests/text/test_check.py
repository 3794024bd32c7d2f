"""The peer's answers to requests that its schema or its first checks refuse, word for word."""

from typing import Any

import pytest

from tests.text._requests import chat, completion
from vllmfront.errors import ConfigurationError, MalformedRequest, RequestRejected
from vllmfront.text import SamplingLimits, SamplingRequest, check_request, check_schema

LIMITS = SamplingLimits()


def check(request: SamplingRequest, limits: SamplingLimits) -> None:
    """Check as a route does, which looks for the model in between."""
    check_schema(request, limits)
    check_request(request, limits)


def complaint(request: SamplingRequest, limits: SamplingLimits = LIMITS) -> tuple[str, str | None]:
    with pytest.raises(RequestRejected) as caught:
        check(request, limits)
    return caught.value.message, caught.value.param


def _range(value: str, low: str, high: str | None = None) -> str:
    top = f'"max": Number({high}), ' if high else ""
    return f'Validation error: range [{{"min": Number({low}), {top}"value": Number({value})}}]'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, f"temperature: {_range('-1.0', '0.0', '2.0')}"),
        ({"temperature": 2.5}, f"temperature: {_range('2.5', '0.0', '2.0')}"),
        ({"min_p": -0.1}, f"min_p: {_range('-0.10000000149011612', '0.0', '1.0')}"),
        ({"frequency_penalty": 3}, f"frequency_penalty: {_range('3.0', '-2.0', '2.0')}"),
        ({"presence_penalty": -3}, f"presence_penalty: {_range('-3.0', '-2.0', '2.0')}"),
        ({"repetition_penalty": 2.5}, f"repetition_penalty: {_range('2.5', '0.0', '2.0')}"),
        ({"max_tokens": 0}, f"max_completion_tokens: {_range('0', '1')}"),
        ({"max_completion_tokens": 0}, f"max_completion_tokens: {_range('0', '1')}"),
        ({"max_tokens": 0, "max_completion_tokens": 3}, f"max_tokens: {_range('0', '1')}"),
        ({"n": 0}, f"n: {_range('0', '1', '10')}"),
        ({"n": 11}, f"n: {_range('11', '1', '10')}"),
        ({"logprobs": True, "top_logprobs": -2}, f"top_logprobs: {_range('-2', '-1')}"),
        (
            {"top_p": 1.5},
            (
                "top_p: Validation error: top_p must be in (0, 1] - greater than 0.0 and at most"
                ' 1.0 [{"value": Number(1.5)}]'
            ),
        ),
        ({"min_tokens": 5}, "__all__: min_tokens cannot be greater than max_completion_tokens"),
        (
            {"min_tokens": 5, "max_completion_tokens": 9},
            "__all__: min_tokens cannot be greater than max_tokens",
        ),
        ({"top_logprobs": 2}, "__all__: top_logprobs is only allowed when logprobs is enabled"),
        (
            {"logprobs": False, "top_logprobs": -1},
            "__all__: top_logprobs is only allowed when logprobs is enabled",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "", "schema": {}},
                }
            },
            "__all__: JSON schema name cannot be empty",
        ),
    ],
)
def test_what_the_schema_of_chat_refuses(fields: dict[str, Any], message: str) -> None:
    assert complaint(chat(**fields)) == (message, None)


def test_the_schema_tells_all_wrong_fields_at_once_and_only_then_rules() -> None:
    message, _ = complaint(chat(temperature=-1, top_p=2, min_tokens=9))

    assert [line.partition(":")[0] for line in message.splitlines()] == ["temperature", "top_p"]


@pytest.mark.parametrize("surface", [chat, completion])
@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ("", 'stop strings cannot be empty [{"value": String("")}]'),
        ([""], 'stop strings cannot be empty [{"value": Array [String("")]}]'),
        (
            ["a", "b", "c", "d", 'e"\n'],
            (
                "stop strings must contain at most 4 items"
                ' [{"value": Array [String("a"), String("b"), String("c"), String("d"),'
                ' String("e\\"\\n")]}]'
            ),
        ),
    ],
)
def test_stop_strings(surface: Any, stop: str | list[str], message: str) -> None:
    assert complaint(surface(stop=stop)) == (f"stop: Validation error: {message}", None)


@pytest.mark.parametrize(
    ("request_", "message", "param"),
    [
        (
            chat(logprob_token_ids=[1]),
            "when using `logprob_token_ids`, `logprobs` must be set to true.",
            "logprob_token_ids",
        ),
        (
            completion(logprob_token_ids=[1]),
            "when using `logprob_token_ids`, `logprobs` must be set.",
            "logprob_token_ids",
        ),
        (
            chat(prompt_logprobs=-2),
            "prompt_logprobs must be a non-negative value or -1.",
            "prompt_logprobs",
        ),
        (
            completion(prompt_logprobs=-2),
            "`prompt_logprobs` must be a non-negative value or -1.",
            "prompt_logprobs",
        ),
        (
            chat(prompt_logprobs=2, stream=True),
            "prompt_logprobs are not available when stream=true.",
            "prompt_logprobs",
        ),
        (
            completion(prompt_logprobs=1, stream=True),
            "`prompt_logprobs` are not available when `stream=true`.",
            "prompt_logprobs",
        ),
        (
            completion(logprobs=-2, prompt_logprobs=-2),
            "`logprobs` must be a non-negative value or -1.",
            "logprobs",
        ),
        (
            completion(max_tokens=0),
            "max_tokens=0 is only supported when echo=true.",
            "max_tokens",
        ),
        (
            chat(truncate_prompt_tokens=-2),
            "truncate_prompt_tokens must be >= -1.",
            "truncate_prompt_tokens",
        ),
        (
            completion(truncate_prompt_tokens=5, echo=True),
            "`echo=true` is not supported with `truncate_prompt_tokens`.",
            "echo",
        ),
        (
            chat(logit_bias={"x": 1, "y": 2, "5000": 1}),
            (
                'logit_bias contains key(s) that are not valid token IDs: ["x", "y"].'
                " Token IDs must be non-negative integers."
            ),
            "logit_bias",
        ),
        (
            chat(logit_bias={"-1": 1}),
            (
                'logit_bias contains key(s) that are not valid token IDs: ["-1"].'
                " Token IDs must be non-negative integers."
            ),
            "logit_bias",
        ),
    ],
)
def test_what_is_refused_before_the_prompt_is_read(
    request_: SamplingRequest, message: str, param: str
) -> None:
    assert complaint(request_) == (message, param)


@pytest.mark.parametrize(
    "key", ["", " 1", "1 ", "1.0", "0x1", "٣", "--1", "++1", "4294967296", "9" * 5000]
)
def test_keys_that_are_no_ids(key: str) -> None:
    assert complaint(chat(logit_bias={key: 1.0}))[1] == "logit_bias"


@pytest.mark.parametrize(
    "request_",
    [
        chat(prompt_logprobs=0, stream=True),
        chat(seed=-1, top_k=-1, top_logprobs=0, stop=[], logit_bias={"01": 1, "+1": 2}),
        completion(max_tokens=0, echo=True),
        completion(n=0, stop=None, top_logprobs=5),
        completion(min_tokens=5),
        completion(repetition_penalty=3),
    ],
)
def test_what_passes(request_: SamplingRequest) -> None:
    check(request_, LIMITS)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": -1}, "max_tokens: invalid value: integer `-1`, expected u32"),
        ({"min_tokens": -1}, "min_tokens: invalid value: integer `-1`, expected u32"),
        ({"seed": 1 << 63}, f"seed: invalid value: integer `{1 << 63}`, expected i64"),
        (
            {"stream_interval": 0},
            "stream_interval: invalid value: integer `0`, expected a nonzero u32",
        ),
    ],
)
def test_integers_that_the_wire_cannot_carry(fields: dict[str, int], told: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        check_schema(completion(**fields), LIMITS)

    assert caught.value.message.endswith(told)


def test_of_the_schemas_rules_only_the_first_is_told() -> None:
    assert complaint(chat(top_logprobs=4, min_tokens=9)) == (
        "__all__: top_logprobs is only allowed when logprobs is enabled",
        None,
    )


def test_a_format_needs_its_type() -> None:
    message, _ = complaint(chat(response_format={}))

    assert message.endswith("response_format: missing field `type`")


def test_an_unknown_side_is_named() -> None:
    assert complaint(chat(truncation_side="middle"))[1] == "truncation_side"


def test_choices_are_limited() -> None:
    message, param = complaint(completion(n=20), SamplingLimits(max_choices=16))

    assert param == "n"
    assert "VLLM_MAX_N_SEQUENCES" in message


def test_limits_come_from_the_environment() -> None:
    limits = SamplingLimits.from_environment(
        {
            "VLLM_MAX_STOP_STRINGS": "2",
            "VLLM_MAX_NUM_BAD_WORDS": "3",
            "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS": "4",
            "VLLM_MAX_N_SEQUENCES": "",
        },
        max_logprobs=-1,
        structured_backend="auto",
    )

    assert limits == SamplingLimits(
        max_logprobs=-1, max_stop_strings=2, max_bad_words=3, max_bad_word_tokens=4
    )


@pytest.mark.parametrize(
    ("environ", "options", "named"),
    [
        ({"VLLM_MAX_STOP_STRINGS": "-1"}, {}, "VLLM_MAX_STOP_STRINGS"),
        ({"VLLM_MAX_NUM_BAD_WORDS": "many"}, {}, "VLLM_MAX_NUM_BAD_WORDS"),
        ({}, {"max_logprobs": -2}, "--max-logprobs"),
        ({}, {"structured_backend": "nope"}, "--structured-outputs-config"),
    ],
)
def test_bad_limits_are_named(environ: dict[str, str], options: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        SamplingLimits.from_environment(environ, **options)
