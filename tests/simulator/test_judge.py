import pytest

from vllmfront.engine import EngineRequest, LoraRequest, PoolingParams, SamplingParams
from vllmfront.engine.wire import Add
from vllmfront.simulator import SimulatorConfig
from vllmfront.simulator._judge import deafening_fault, fatal_fault

CONFIG = SimulatorConfig(handshake="tcp://127.0.0.1:1", vocab_size=100, max_model_len=50)


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({}, None),
        ({"temperature": 2.0, "top_p": 1.0, "top_k": -1, "logprobs": -1}, None),
        ({"n": 0}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"logprobs": -2}, "logprobs"),
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
    ],
)
def test_values_that_deafen(params: dict[str, object], fault: str | None) -> None:
    given = SamplingParams(**params)  # type: ignore[arg-type]  # keywords of the table

    assert deafening_fault(given) == fault


def add(prompt: list[int], **fields: object) -> Add:
    fields = {"sampling": SamplingParams()} | fields
    request = EngineRequest(request_id="r", prompt_token_ids=prompt, **fields)  # type: ignore[arg-type]  # keywords of the table
    return Add(internal_id="r", request=request, client_index=0, current_wave=0)


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (add([1]), None),
        (add([0, 99]), None),
        (add([]), "empty prompt"),
        (add([1] * 51), "prompt of 51 tokens"),
        (add([-1]), "prompt token"),
        (add([100]), "prompt token"),
        (add([1], sampling=SamplingParams(stop_token_ids=[100])), None),
        (add([1], sampling=SamplingParams(stop_token_ids=[100], min_tokens=1)), "stop_token_ids"),
        (add([1], sampling=SamplingParams(all_stop_token_ids=[100])), "all_stop_token_ids"),
        (add([1], sampling=SamplingParams(allowed_token_ids=[100])), "allowed_token_ids"),
        (add([1], sampling=SamplingParams(logit_bias={-1: 1.0})), "logit_bias"),
        (add([1], sampling=SamplingParams(logprob_token_ids=[100])), "logprob_token_ids"),
        (add([1], sampling=SamplingParams(logprobs=101)), "logprobs"),
        (add([1], sampling=SamplingParams(prompt_logprobs=101)), "prompt_logprobs"),
        (add([1], lora=LoraRequest(name="a", int_id=1, path="/a")), "LoRA"),
        (add([1], sampling=None, pooling=PoolingParams(task="embed")), "unsupported task"),
    ],
)
def test_requests_that_kill(asked: Add, fault: str | None) -> None:
    found = fatal_fault(asked, CONFIG, in_flight=False)

    assert (found is None) if fault is None else (found is not None and found.startswith(fault))


def test_an_id_in_flight_kills() -> None:
    assert fatal_fault(add([1]), CONFIG, in_flight=True) == "request r is in flight already"
