"""What the guard refuses, in which words; and what it lets pass although it looks odd."""

import math
from typing import Any

import attrs
import pytest
from msgspec.structs import replace

from vllmfront.engine._request import (
    EngineRequest,
    LoraRequest,
    PoolingParams,
    RepetitionDetection,
    SamplingParams,
    StructuredOutputs,
)
from vllmfront.engine.guard import GuardLimits, check_request
from vllmfront.engine.wire import Tensor
from vllmfront.errors import RequestRejected

LIMITS = GuardLimits(vocab_size=1000, max_model_len=100, num_ranks=2, lora_ids={4})
POOLING = attrs.evolve(LIMITS, supported_tasks=frozenset({"embed", "token_embed"}))
PLAIN = EngineRequest(request_id="r", prompt_token_ids=[1, 2, 3], sampling=SamplingParams())


def request_with(**changes: Any) -> EngineRequest:
    return replace(PLAIN, **changes)


def sampled(**fields: Any) -> EngineRequest:
    return replace(PLAIN, sampling=SamplingParams(**fields))


def constrained(**fields: Any) -> EngineRequest:
    return sampled(structured_outputs=StructuredOutputs(**fields))


def pooled(**fields: Any) -> EngineRequest:
    params = PoolingParams(**{"task": "token_embed", **fields})
    return replace(PLAIN, sampling=None, pooling=params)


def refusal(request: EngineRequest, limits: GuardLimits = LIMITS) -> RequestRejected:
    with pytest.raises(RequestRejected) as caught:
        check_request(request, limits)
    return caught.value


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"items": value}
    return value


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"request_id": ""}, "request_id", "cannot be an empty string"),
        ({"request_id": b"r"}, "request_id", "must be text, got bytes"),
        ({"request_id": "\ud800"}, "request_id", "lone surrogate"),
        ({"prompt_token_ids": []}, "prompt_token_ids", "The decoder prompt cannot be empty"),
        ({"prompt_token_ids": None}, "prompt_token_ids", "must be a list, got NoneType"),
        ({"prompt_token_ids": [1, True]}, "prompt_token_ids", "only integers, got bool"),
        ({"prompt_token_ids": [1.0]}, "prompt_token_ids", "only integers, got float"),
        ({"prompt_token_ids": [5, 1000]}, "prompt_token_ids", r"\[1000\].*Vocabulary size: 1000"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids", r"token_id\(s\) \[-1\]"),
        ({"prompt_token_ids": [1] * 100}, "input_tokens", "leaves no room"),
        ({"prompt_is_token_ids": [True] * 3}, "prompt_is_token_ids", "needs prompt_token_ids and"),
        ({"prompt_embeds": "x"}, "prompt_embeds", "must be a Tensor"),
        (
            {"prompt_embeds": Tensor("float32", (1, 1), bytes(4))},
            "prompt_embeds",
            "not enabled",
        ),
        ({"sampling": None}, "sampling", "needs sampling or pooling parameters"),
        ({"pooling": PoolingParams(task="embed")}, "sampling", "not both"),
        ({"arrival_time": float("nan")}, "arrival_time", "must be in"),
        ({"priority": 2**63}, "priority", "must be at most 9223372036854775807"),
        ({"priority": 1.0}, "priority", "must be an integer, got float"),
        ({"data_parallel_rank": 2}, "data_parallel_rank", "2 is out of range .0, 2.."),
        ({"lora": LoraRequest(name="l", int_id=5, path="p")}, "model", "`l` does not exist"),
        ({"lora": LoraRequest(name="l", int_id=0, path="p")}, "lora id", "at least 1, got 0"),
        ({"lora": LoraRequest(name="l", int_id=4, path="")}, "lora path", "empty string"),
        ({"trace_headers": {"a": 1}}, "trace_headers", "must be text, got int"),
        ({"mm_features": [{}]}, "mm_features", "takes text only"),
        ({"resumable": 1}, "resumable", "must be true or false, got int"),
        ({"reasoning_parser_kwargs": {"a": b"x"}}, "reasoning_parser_kwargs", "holds a bytes"),
        ({"kv_hints": {}}, "kv_hints.protocol_version", "must be text, got NoneType"),
    ],
)
def test_refused_requests(changes: dict[str, Any], param: str, message: str) -> None:
    error = refusal(request_with(**changes))

    assert error.param == param
    assert_matches(message, error)


def assert_matches(pattern: str, error: RequestRejected) -> None:
    with pytest.raises(RequestRejected, match=pattern):
        raise error


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"n": 2}, "n", "must be in .1, 1., got 2"),
        ({"temperature": -1.0}, "temperature", r"must be in \[0, 2\], got -1.0"),
        ({"temperature": float("nan")}, "temperature", "got nan"),
        ({"temperature": True}, "temperature", "must be a number, got bool"),
        ({"temperature": "1"}, "temperature", "must be a number, got str"),
        ({"temperature": 2**64}, "temperature", "must be at most"),
        ({"top_p": 0.0}, "top_p", "must be in"),
        ({"top_k": -2}, "top_k", "must be at least -1, got -2"),
        ({"top_k": 1.0}, "top_k", "must be an integer, got float"),
        ({"min_p": 1.1}, "min_p", "must be in"),
        ({"presence_penalty": 2.5}, "presence_penalty", "must be in"),
        ({"frequency_penalty": -2.5}, "frequency_penalty", "must be in"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "must be in"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty", "got inf"),
        ({"seed": 2**63}, "seed", "must be at most"),
        ({"max_tokens": 0}, "max_tokens", "must be at least 1, got 0"),
        ({"max_tokens": None}, "max_tokens", "must be an integer, got NoneType"),
        ({"min_tokens": -1}, "min_tokens", "must be in"),
        ({"min_tokens": 17}, "min_tokens", "less than or equal to max_tokens=16, got 17"),
        ({"stop_token_ids": [1000]}, "stop_token_ids", "out-of-vocab"),
        ({"stop_token_ids": None}, "stop_token_ids", "must be a list"),
        ({"all_stop_token_ids": [-1]}, "all_stop_token_ids", "out-of-vocab"),
        ({"all_stop_token_ids": {1}}, "all_stop_token_ids", "must be a list, got set"),
        ({"eos_token_id": 1000}, "eos_token_id", "out-of-vocab"),
        (
            {"stop_token_ids": list(range(129)), "min_tokens": 1},
            "stop_token_ids",
            "129 entries, at most 128",
        ),
        ({"logprobs": 1001}, "logprobs", "of 1001, which is greater than max allowed: 1000"),
        ({"logprobs": -2}, "logprobs", "must be at least -1"),
        ({"prompt_logprobs": 1001}, "prompt_logprobs", "greater than max allowed"),
        ({"logprob_token_ids": [0] * 129}, "logprob_token_ids", "of length 129"),
        ({"logprob_token_ids": [1, 2], "logprobs": 3}, "logprob_token_ids", "must equal"),
        ({"logit_bias": {1000: 1.0}}, "logit_bias", "out-of-vocab"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias", "only integers, got str"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias", "must be in"),
        ({"logit_bias": {1: 1e300}}, "logit_bias", "must be in"),
        ({"logit_bias": [1]}, "logit_bias", "must be a map"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "not None and empty"),
        ({"allowed_token_ids": [1000]}, "allowed_token_ids", "out-of-vocab"),
        ({"allowed_token_ids": [1] * 1025}, "allowed_token_ids", "at most 1024"),
        ({"bad_words_token_ids": [[]]}, "bad_words", "at least one token"),
        ({"bad_words_token_ids": [[1000]]}, "bad_words", "out-of-vocab"),
        ({"bad_words_token_ids": [[1]] * 129}, "bad_words", "at most 128"),
        ({"bad_words_token_ids": [[1] * 1025]}, "bad_words", "1025 tokens, at most 1024"),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "at least -1"),
        ({"thinking_token_budget": 1.0}, "thinking_token_budget", "must be an integer"),
        ({"stream_interval": 0}, "stream_interval", "at least 1"),
        ({"watermarking": None}, "watermarking", "must be true or false"),
        ({"routed_experts_prompt_start": 4}, "routed_experts_prompt_start", "must be in .0, 3."),
        ({"trace_decode_token_ids": []}, "trace_decode_token_ids", "non-empty"),
        (
            {"trace_decode_token_ids": [1], "prompt_logprobs": 1},
            "trace_decode_token_ids",
            "not supported with prompt_logprobs",
        ),
        ({"prompt_logprob_start": 1}, "prompt_logprob_start", "requires"),
        ({"extra_args": {"a": [{"b": 2**64}]}}, "extra_args", "more than 64 bits"),
        ({"extra_args": {"a": float("inf")}}, "extra_args", "holds inf"),
        ({"extra_args": {1: 2}}, "extra_args key", "must be text"),
        ({"extra_args": nested(70)}, "extra_args", "nested too deeply"),
        ({"extra_args": {"kv_transfer_params": "x"}}, "kv_transfer_params", "must be a map"),
    ],
)
def test_refused_sampling_parameters(fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(sampled(**fields))

    assert error.param == param
    assert_matches(message, error)


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ((-1, 0, 2), "max_pattern_size"),
        ((2, 3, 2), "min_pattern_size"),
        ((2, 1, 1), "min_count"),
        ((2, 1, True), "min_count"),
    ],
)
def test_refused_repetition_detection(sizes: tuple[int, int, int], field: str) -> None:
    most, least, count = sizes
    detection = RepetitionDetection(max_pattern_size=most, min_pattern_size=least, min_count=count)

    error = refusal(sampled(repetition_detection=detection))

    assert error.param == f"repetition_detection.{field}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "must use one kind"),
        ({"regex": "a", "json_object": True}, "only use one kind.*: regex, json_object"),
        ({"json": ""}, "json cannot be an empty string"),
        ({"json": "{"}, "json is not valid JSON"),
        ({"json": "[1]"}, "json must be a JSON schema, got list"),
        ({"json": nested(70)}, "nested too deeply"),
        ({"json": "[" * 100_000}, "nested too deeply|not valid JSON"),
        ({"json": {"a": 2**64}}, "more than 64 bits"),
        ({"json": [1]}, "must be a map"),
        ({"regex": "a\0"}, "NUL"),
        ({"regex": "\ud800"}, "lone surrogate"),
        ({"choice": []}, "choice cannot be an empty list"),
        ({"choice": [1]}, "choice must be text"),
        ({"grammar": " "}, "grammar cannot be an empty string"),
        ({"json_object": False}, "json_object must be True if set"),
        ({"structural_tag": ""}, "structural_tag cannot be an empty string"),
        ({"structural_tag": "[]"}, "structural_tag must be a JSON object"),
        ({"structural_tag": '{"a": 1e999}'}, "holds inf"),
        ({"json_object": True, "backend": "auto"}, "backend must be one of.*got 'auto'"),
        ({"json_object": True, "backend": None}, "must be text"),
        ({"json_object": True, "disable_any_whitespace": 1}, "must be true or false"),
        ({"json_object": True, "whitespace_pattern": 1}, "must be text"),
    ],
)
def test_refused_constraints(fields: dict[str, Any], message: str) -> None:
    error = refusal(constrained(**fields))

    assert error.param is not None
    assert error.param.startswith("structured_outputs")
    assert_matches(message, error)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"task": "classify"}, "task", "Unsupported task: 'classify'"),
        ({"task": None}, "task", "Unsupported task: None"),
        ({"task": "generate"}, "task", "Unsupported task"),
        ({"output_kind": 1}, "output_kind", "must be in .2, 2."),
        ({"dimensions": 0}, "dimensions", "at least 1"),
        ({"returned_token_ids": [1000]}, "returned_token_ids", "out-of-vocab"),
        ({"late_interaction_params": ["x", "k"]}, "late_interaction_params", "mode must be"),
        (
            {"late_interaction_params": ["cache_query", "k"]},
            "late_interaction_params",
            "query_uses must be",
        ),
        ({"late_interaction_params": [1]}, "late_interaction_params", "must be .mode"),
        ({"late_chunking_params": [0]}, "late_chunking_params", "at least 1"),
        (
            {"late_chunking_params": [8], "task": "embed"},
            "late_chunking_params",
            "requires token_embed",
        ),
    ],
)
def test_refused_pooling_parameters(fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(pooled(**fields), POOLING)

    assert error.param == param
    assert_matches(message, error)


def test_a_model_does_what_it_supports() -> None:
    generating = refusal(pooled())
    pooling = refusal(PLAIN, POOLING)

    assert generating.message == "This model does not support pooling"
    assert pooling.message == "This model does not support generation"
    assert refusal(replace(pooled(), resumable=True), POOLING).param == "resumable"


def test_scored_ids_fit_the_prompt() -> None:
    def scored(rows: list[list[int]], **fields: Any) -> EngineRequest:
        return sampled(prompt_logprob_token_ids=Tensor.from_rows("<i4", rows), **fields)

    check_request(scored([[1, -1], [999, 0]]), LIMITS)
    check_request(scored([[1]], prompt_logprob_start=1), LIMITS)

    assert "3 rows" in refusal(scored([[1], [2], [3]])).message
    assert "out-of-vocab" in refusal(scored([[1000], [2]])).message
    assert (
        "<i4" in refusal(sampled(prompt_logprob_token_ids=Tensor("<i8", (2, 1), bytes(16)))).message
    )


def test_embeddings_fit_the_model_and_the_prompt() -> None:
    limits = attrs.evolve(LIMITS, hidden_size=4)
    embeds = Tensor("bfloat16", (3, 4), bytes(24))

    check_request(request_with(prompt_token_ids=[], prompt_embeds=embeds), limits)
    check_request(
        request_with(prompt_embeds=embeds, prompt_is_token_ids=[True, False, False]), limits
    )

    wide = Tensor("bfloat16", (3, 5), bytes(30))
    numbers = Tensor("int32", (3, 4), bytes(48))
    short = Tensor("bfloat16", (2, 4), bytes(16))
    assert "[n, 4]" in refusal(request_with(prompt_embeds=wide), limits).message
    assert "[n, 4]" in refusal(request_with(prompt_embeds=numbers), limits).message
    assert "2 rows for 3" in refusal(request_with(prompt_embeds=short), limits).message
    assert (
        refusal(request_with(prompt_embeds=embeds, prompt_is_token_ids=[True]), limits).param
        == "prompt_is_token_ids"
    )


@pytest.mark.parametrize(
    "request_",
    [
        PLAIN,
        request_with(prompt_token_ids=[1] * 99),
        request_with(prompt_token_ids=(0, 999)),
        request_with(priority=-(2**63), cache_salt="", session_id="", trace_headers={}),
        request_with(data_parallel_rank=1, lora=LoraRequest(name="l", int_id=4, path="p")),
        request_with(mm_features=[], abort_immediately=True, resumable=True),
        sampled(temperature=0, top_p=1, max_tokens=2**62, seed=-(2**63)),
        sampled(logprobs=-1, prompt_logprobs=1000, logprob_token_ids=None),
        sampled(stop_token_ids=[5] * 500, all_stop_token_ids=[5]),
        sampled(extra_args={"a": [1, None, "ü", 2**64 - 1, {"b": nested(40)}]}),
        sampled(thinking_token_budget=-1, stream_interval=2**40),
        sampled(repetition_detection=RepetitionDetection(max_pattern_size=0)),
        constrained(json="true"),
        constrained(json={}),
        constrained(regex=""),
        constrained(structural_tag="{}", backend="guidance"),
    ],
)
def test_odd_requests_that_engines_take(request_: EngineRequest) -> None:
    check_request(request_, LIMITS)


def test_a_pooling_prompt_may_fill_the_whole_length() -> None:
    check_request(replace(pooled(), prompt_token_ids=[1] * 100), POOLING)

    over = replace(pooled(), prompt_token_ids=[1] * 101)
    assert refusal(over, POOLING).param == "input_tokens"


def test_unknown_limits_do_not_bind_but_32_bits_do() -> None:
    limits = GuardLimits(vocab_size=None, max_model_len=None, max_stop_token_ids=None)

    check_request(request_with(prompt_token_ids=[2**31 - 2] * 5000), limits)

    assert refusal(request_with(prompt_token_ids=[2**31]), limits).param == "prompt_token_ids"


def test_candidates_are_bounded_by_the_limit_or_the_vocabulary() -> None:
    check_request(sampled(logprobs=1000), LIMITS)

    few = attrs.evolve(LIMITS, max_logprobs=0)
    check_request(sampled(logprobs=0), few)
    assert refusal(sampled(logprobs=1), few).param == "logprobs"


@pytest.mark.parametrize("deadline", ["soon", math.nan, math.inf, True, float])
def test_a_deadline_is_a_point_in_time(deadline: Any) -> None:
    assert refusal(request_with(deadline=deadline)).param == "deadline"
