from typing import Any

import pytest
from msgspec.structs import replace

from vllmfront.engine._fan_out import fan_out
from vllmfront.engine._request import EngineRequest, PoolingParams, SamplingParams
from vllmfront.errors import RequestRejected

MOST = 16384


def request_for(**sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id="cmpl-7", prompt_token_ids=[1, 2], sampling=SamplingParams(**sampling)
    )


def sampling_of(request: EngineRequest) -> SamplingParams:
    assert request.sampling is not None
    return request.sampling


def test_each_choice_is_a_request_with_an_id_and_a_seed_of_its_own() -> None:
    request = request_for(n=3, seed=40, temperature=0.5)

    choices = list(fan_out(request, MOST))

    assert [choice.request_id for choice in choices] == ["0_cmpl-7", "1_cmpl-7", "2_cmpl-7"]
    assert [sampling_of(choice).seed for choice in choices] == [40, 41, 42]
    assert [sampling_of(choice).n for choice in choices] == [1, 1, 1]
    assert choices[2] == replace(
        request, request_id="2_cmpl-7", sampling=SamplingParams(seed=42, temperature=0.5)
    )


@pytest.mark.parametrize("seed", [None, -1])
def test_without_a_seed_no_choice_has_one(seed: int | None) -> None:
    choices = list(fan_out(request_for(n=2, seed=seed), MOST))

    assert [sampling_of(choice).seed for choice in choices] == [seed, seed]


def test_the_largest_seeds_wrap_around() -> None:
    choices = list(fan_out(request_for(n=2, seed=2**63 - 1), MOST))

    assert [sampling_of(choice).seed for choice in choices] == [2**63 - 1, -(2**63)]


def test_one_choice_is_the_request_itself() -> None:
    sampled = request_for(n=1, temperature=0.0)
    pooled = EngineRequest(request_id="p", prompt_token_ids=[1], pooling=PoolingParams())

    assert fan_out(sampled, MOST) == [sampled]
    assert fan_out(pooled, MOST) == [pooled]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 16385}, "n must be at most 16384, got 16385."),
        ({"n": True}, "n must be an integer, got bool."),
        ({"n": 2.0}, "n must be an integer, got float."),
        ({"n": 10**5000}, "n must be at most 9223372036854775807, got an enormous integer."),
        ({"n": 2, "temperature": 0.0}, "n must be 1 when using greedy sampling, got 2."),
        ({"n": 2, "temperature": 1e-6}, "n must be 1 when using greedy sampling, got 2."),
    ],
)
def test_what_cannot_be_fanned_out_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        fan_out(request_for(**fields), MOST)

    assert caught.value.message == message
    assert caught.value.param == "n"


def test_streaming_input_has_one_choice() -> None:
    with pytest.raises(RequestRejected, match="streaming input"):
        fan_out(replace(request_for(n=2), resumable=True), MOST)
