"""What may go on elsewhere, and as what."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from vllmfront.engine import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    PrefillStats,
    RepetitionDetection,
    SamplingParams,
    StructuredOutputs,
)
from vllmfront.engine.client.requests._continuation import (
    continued,
    may_continue,
    may_continue_sampling,
    may_send_again,
    without_prompt,
)


def ask(**fields: Any) -> EngineRequest:
    fields.setdefault("sampling", SamplingParams(max_tokens=10))
    return EngineRequest(request_id="r", prompt_token_ids=[1, 2, 3], **fields)


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.0, "seed": 7},
        {"seed": -1},
        {"repetition_penalty": 1.3},
        {"logit_bias": {5: 1.0}, "allowed_token_ids": [5, 6], "logprobs": 3},
        {"stop_token_ids": (5,), "min_tokens": 3, "top_k": 4},
        {"prompt_logprobs": 1},
        {"extra_args": {"vllm_xargs": {"a": 1}}},
    ],
)
def test_sampling_that_keeps_no_account_of_its_output_can_go_on(sampling: dict[str, Any]) -> None:
    assert may_continue_sampling(SamplingParams(**sampling))


@pytest.mark.parametrize(
    "sampling",
    [
        {"seed": 7},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"bad_words_token_ids": [[5]]},
        {"structured_outputs": StructuredOutputs(json_object=True)},
        {"thinking_token_budget": 0},
        {"repetition_detection": RepetitionDetection(max_pattern_size=3)},
        {"trace_decode_token_ids": [5]},
        {"extra_args": {"kv_transfer_params": {"do_remote_prefill": True}}},
        {"extra_args": {"ec_transfer_params": {}}},
    ],
)
def test_sampling_that_counts_its_output_cannot(sampling: dict[str, Any]) -> None:
    assert not may_continue_sampling(SamplingParams(**sampling))


def test_pooling_has_nothing_to_go_on_with() -> None:
    assert not may_continue_sampling(None)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_embeds": object()},
        {"mm_features": [object()]},
        {"kv_hints": {}},
        {"resumable": True},
    ],
)
def test_what_hangs_on_the_engine_that_is_lost_cannot_go_on(fields: dict[str, Any]) -> None:
    assert may_continue(ask())
    assert not may_continue(ask(**fields))


def test_handles_of_another_engines_cache_are_good_for_one_use() -> None:
    remote = SamplingParams(extra_args={"kv_transfer_params": {"remote_block_ids": [1]}})

    assert may_send_again(ask())
    assert may_send_again(ask(sampling=None))
    assert not may_send_again(ask(sampling=remote))
    assert not may_send_again(ask(resumable=True))


@given(
    made=st.lists(st.integers(0, 999), min_size=1, max_size=20),
    left=st.integers(1, 20),
    least=st.integers(0, 20),
)
def test_what_goes_on_asks_for_what_is_left(made: list[int], left: int, least: int) -> None:
    total = len(made) + left
    sampling = SamplingParams(
        max_tokens=total, min_tokens=min(least, total), temperature=0.0, stop_token_ids=(5,)
    )
    request = ask(sampling=sampling, cache_salt="salt", priority=3)

    rest = continued(request, made, None)

    assert rest is not None
    assert rest.sampling is not None
    assert rest.prompt_token_ids == [1, 2, 3, *made]
    assert rest.sampling.max_tokens == left
    assert rest.sampling.min_tokens == max(0, sampling.min_tokens - len(made))
    assert rest.sampling.min_tokens <= rest.sampling.max_tokens
    unchanged = replace(rest.sampling, max_tokens=total, min_tokens=sampling.min_tokens)
    assert unchanged == sampling
    assert replace(rest, prompt_token_ids=[1, 2, 3], sampling=sampling) == request


def test_what_has_all_its_tokens_is_complete() -> None:
    assert continued(ask(), list(range(10)), None) is None
    assert continued(ask(), [7, 8], 5) is None
    assert continued(ask(), [7], 5) is not None


def test_what_was_said_about_the_prompt_is_not_asked_for_again() -> None:
    sampling = SamplingParams(prompt_logprobs=2, prompt_logprob_start=1)

    rest = continued(ask(sampling=sampling), [7], None)

    assert rest is not None
    assert rest.sampling is not None
    assert rest.sampling.prompt_logprobs is None
    assert rest.sampling.prompt_logprob_start is None


def test_statistics_of_the_longer_prompt_are_dropped() -> None:
    plain = EngineOutput(new_token_ids=[1], finish_reason=FinishReason.STOP)
    first = EngineOutput(new_token_ids=[1], prefill_stats=PrefillStats(num_prompt_tokens=9))

    assert without_prompt(plain) is plain
    assert without_prompt(first) == EngineOutput(new_token_ids=[1])
