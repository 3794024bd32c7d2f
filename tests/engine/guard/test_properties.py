"""Whatever a request holds, the guard passes it or says why not; what passes can be sent."""

import random
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import Struct
from msgspec.structs import replace

from tests.engine.guard.strategies import (
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    WILD_VALUES,
    random_request,
    requests,
)
from vllmfront.engine._request import (
    EngineRequest,
    LoraRequest,
    PoolingParams,
    RepetitionDetection,
    SamplingParams,
    StructuredOutputs,
)
from vllmfront.engine.guard import GuardLimits, adapt_request, check_request
from vllmfront.engine.wire import Add, Tensor, decode_request, encode_add
from vllmfront.errors import RequestRejected
from vllmfront.simulator import SimulatorConfig
from vllmfront.simulator._judge import deafening_fault, fatal_fault

LIMITS = GuardLimits(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
POOLING_LIMITS = attrs.evolve(LIMITS, supported_tasks=frozenset({"embed", "token_embed"}))
ENGINE = SimulatorConfig(
    handshake="tcp://127.0.0.1:1", vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN
)


def passes(request: EngineRequest, limits: GuardLimits = LIMITS) -> bool:
    """Tell whether the guard lets *request* pass; any other end is a failure."""
    try:
        check_request(request, limits)
    except RequestRejected as error:
        refusal = error
    else:
        return True
    assert refusal.param
    assert refusal.message.encode()
    assert len(refusal.message) < 500
    return False


def survives(request: EngineRequest) -> bool:
    """Tell whether an engine takes *request* off the wire and lives."""
    add = decode_request(encode_add(request, internal_id="r-1"))
    assert isinstance(add, Add)
    deaf = None if add.request.sampling is None else deafening_fault(add.request.sampling)
    return deaf is None and fatal_fault(add, ENGINE, in_flight=False) is None


@given(requests)
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_passes_does_not_kill_an_engine(request: EngineRequest) -> None:
    if passes(request):
        for version in ("0.32.0", "0.33.0"):
            assert survives(adapt_request(request, version))


def test_more_than_half_of_the_random_requests_pass() -> None:
    drawn = [random_request(random.Random(seed)) for seed in range(500)]

    assert sum(map(passes, drawn)) > 250


PLAIN = EngineRequest(
    request_id="r", prompt_token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=4)
)
POOLED = replace(PLAIN, sampling=None, pooling=PoolingParams(task="token_embed"))


def with_sampling(**changes: Any) -> EngineRequest:
    assert PLAIN.sampling is not None
    return replace(PLAIN, sampling=replace(PLAIN.sampling, **changes))


def names_of(kind: type[Struct]) -> list[str]:
    return list(kind.__struct_fields__)


@pytest.mark.parametrize("name", names_of(EngineRequest))
def test_any_value_in_any_field_of_a_request(name: str) -> None:
    for value in WILD_VALUES:
        request = replace(PLAIN, **{name: value})
        if passes(request):
            assert survives(request), value


@pytest.mark.parametrize("name", names_of(SamplingParams))
def test_any_value_in_any_field_of_the_sampling_parameters(name: str) -> None:
    for value in WILD_VALUES:
        request = with_sampling(**{name: value})
        if passes(request):
            assert survives(request), value


@pytest.mark.parametrize("name", names_of(PoolingParams))
def test_any_value_in_any_field_of_the_pooling_parameters(name: str) -> None:
    assert POOLED.pooling is not None
    for value in WILD_VALUES:
        request = replace(POOLED, pooling=replace(POOLED.pooling, **{name: value}))
        if passes(request, POOLING_LIMITS):
            assert isinstance(decode_request(encode_add(request, internal_id="r-1")), Add)


@pytest.mark.parametrize("name", names_of(StructuredOutputs))
def test_any_value_in_any_field_of_a_constraint(name: str) -> None:
    for value in WILD_VALUES:
        for constraint in (
            StructuredOutputs(**{name: value}),
            replace(StructuredOutputs(json_object=True), **{name: value}),
        ):
            request = with_sampling(structured_outputs=constraint)
            if passes(request):
                assert survives(request), value


@pytest.mark.parametrize("name", names_of(RepetitionDetection))
def test_any_value_in_any_field_of_repetition_detection(name: str) -> None:
    detection = RepetitionDetection(max_pattern_size=3, min_pattern_size=1, min_count=2)
    for value in WILD_VALUES:
        request = with_sampling(repetition_detection=replace(detection, **{name: value}))
        if passes(request):
            assert survives(request), value


@pytest.mark.parametrize("name", names_of(LoraRequest))
def test_any_value_in_any_field_of_an_adapter(name: str) -> None:
    limits = attrs.evolve(LIMITS, lora_ids=frozenset({1}))
    lora = LoraRequest(name="l", int_id=1, path="p")
    for value in WILD_VALUES:
        request = replace(PLAIN, lora=replace(lora, **{name: value}))
        if passes(request, limits):
            assert isinstance(decode_request(encode_add(request, internal_id="r-1")), Add)


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("modality",),
        ("identifier",),
        ("mm_hash",),
        ("mm_position",),
        ("mm_position", "offset"),
        ("mm_position", "length"),
        ("mm_position", "is_embed"),
        ("data",),
        ("data", "pixels"),
        ("data", "pixels", "data"),
        ("data", "pixels", "field"),
    ],
)
def test_any_value_anywhere_in_a_feature(path: tuple[str, ...]) -> None:
    limits = attrs.evolve(LIMITS, multimodal=True)
    for value in WILD_VALUES:
        feature: Any = {
            "data": {
                "pixels": {
                    "data": [Tensor("float32", (1,), bytes(4)), 0.5],
                    "field": ["batched", {"keep_on_cpu": False}],
                }
            },
            "modality": "image",
            "identifier": "hash",
            "mm_position": {"offset": 0, "length": 2, "is_embed": None},
            "mm_hash": "hash",
        }
        assert passes(replace(PLAIN, mm_features=[feature]), limits)
        place = feature
        for key in path[:-1]:
            place = place[key]
        if path:
            place[path[-1]] = value
        request = replace(PLAIN, mm_features=[feature if path else value])
        if passes(request, limits):
            assert isinstance(decode_request(encode_add(request, internal_id="r-1")), Add)
