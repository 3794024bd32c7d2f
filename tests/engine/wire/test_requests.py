import base64
from typing import Any

import msgpack
import pytest

from tests.engine.wire.golden import ADDS, REQUESTS, Entry, find, raw
from vllmfront.engine._request import (
    EngineRequest,
    LoraRequest,
    PoolingParams,
    SamplingParams,
    StructuredOutputs,
)
from vllmfront.engine.wire import (
    Abort,
    Add,
    StartWave,
    Tensor,
    Utility,
    decode_lora,
    decode_request,
    encode_abort,
    encode_add,
    encode_lora,
    encode_start_dp_wave,
    encode_utility,
)
from vllmfront.errors import ProtocolError, RequestRejected

# What vllm-rs 0.33 sent for a plain chat, a chat with many sampling parameters, a JSON schema and
# an echoed completion.
PEER_ADDS = {
    "chat-greedy-stream": (
        "3AAWumNoYXRjbXBsLTM0MjEwNDIzLTI1M2YwNzU0n80H+M0Bb1HMxs0HPQDNB/nMxs0H+EDNAS3NAVXN"
        "ASPNAS7MxsCOq3RlbXBlcmF0dXJlygAAAACsd2F0ZXJtYXJraW5nw6V0b3BfcMo/czMzpXRvcF9rFKpt"
        "YXhfdG9rZW5zCKptaW5fdG9rZW5zAKVtaW5fcMoAAAAAsWZyZXF1ZW5jeV9wZW5hbHR5ygAAAACwcHJl"
        "c2VuY2VfcGVuYWx0ecoAAAAAsnJlcGV0aXRpb25fcGVuYWx0eco/gAAArnN0b3BfdG9rZW5faWRzkc0H"
        "961fZW9zX3Rva2VuX2lkzQf5s19hbGxfc3RvcF90b2tlbl9pZHOSzQf3zQf5u3JvdXRlZF9leHBlcnRz"
        "X3Byb21wdF9zdGFydADAy0Haw48ZHVlMwMDAwMAAAADAwrFjaGF0Y21wbC0zNDIxMDQyM8CBtGNoYXRf"
        "dGVtcGxhdGVfa3dhcmdzgMLAwA=="
    ),
    "chat-all-sampling": (
        "3AAWumNoYXRjbXBsLWEzMWUxMDFlLTZiMmFhNmE0n80H+M0Bb1HMxs0HPQDNB/nMxs0H+EDNAS3NAVXN"
        "ASPNAS7MxsDeABCrdGVtcGVyYXR1cmXKPzMzM6x3YXRlcm1hcmtpbmfDpXRvcF9wyj9mZmaldG9wX2sF"
        "pHNlZWQLqm1heF90b2tlbnMDqm1pbl90b2tlbnMCpW1pbl9wyjwj1wqxZnJlcXVlbmN5X3BlbmFsdHnK"
        "PkzMzbBwcmVzZW5jZV9wZW5hbHR5yj3MzM2ycmVwZXRpdGlvbl9wZW5hbHR5yj+MzM2uc3RvcF90b2tl"
        "bl9pZHORBbNfYWxsX3N0b3BfdG9rZW5faWRzkwXNB/fNB/mqbG9naXRfYmlhc4HNA+jKQAAAALRfYmFk"
        "X3dvcmRzX3Rva2VuX2lkc5GSRc0DQbtyb3V0ZWRfZXhwZXJ0c19wcm9tcHRfc3RhcnQAwMtB2sOPG010"
        "2sDAwMDAAAAAwMKxY2hhdGNtcGwtYTMxZTEwMWXAgbRjaGF0X3RlbXBsYXRlX2t3YXJnc4DCwMA="
    ),
    "chat-json-schema": (
        "3AAWumNoYXRjbXBsLTEzOGJlMTVhLTUxZDkzOWNmn80H+M0Bb1HMxs0HPQDNB/nMxs0H+EDNAS3NAVXN"
        "ASPNAS7MxsCPq3RlbXBlcmF0dXJlygAAAACsd2F0ZXJtYXJraW5nw6V0b3BfcMo/czMzpXRvcF9rFKpt"
        "YXhfdG9rZW5zKKptaW5fdG9rZW5zAKVtaW5fcMoAAAAAsWZyZXF1ZW5jeV9wZW5hbHR5ygAAAACwcHJl"
        "c2VuY2VfcGVuYWx0ecoAAAAAsnJlcGV0aXRpb25fcGVuYWx0eco/gAAArnN0b3BfdG9rZW5faWRzkc0H"
        "961fZW9zX3Rva2VuX2lkzQf5s19hbGxfc3RvcF90b2tlbl9pZHOSzQf3zQf5snN0cnVjdHVyZWRfb3V0"
        "cHV0c4KkanNvboSkdHlwZaZvYmplY3SqcHJvcGVydGllc4KhYYGkZW51bZKheKF5oWKBpHR5cGWnYm9v"
        "bGVhbqhyZXF1aXJlZJKhYaFitGFkZGl0aW9uYWxQcm9wZXJ0aWVzwqhfYmFja2VuZKh4Z3JhbW1hcrty"
        "b3V0ZWRfZXhwZXJ0c19wcm9tcHRfc3RhcnQAwMtB2sOPG16dBMDAwMDAAAAAwMKxY2hhdGNtcGwtMTM4"
        "YmUxNWHAgbRjaGF0X3RlbXBsYXRlX2t3YXJnc4DCwMA="
    ),
    "completion-echo": (
        "3AAWtmNtcGwtZDk2NzdlZGItZDc3ZmJhMmGUzQc9zQEzzQEVzQKnwN4AEKt0ZW1wZXJhdHVyZcoAAAAA"
        "rHdhdGVybWFya2luZ8OldG9wX3DKP3MzM6V0b3BfaxSqbWF4X3Rva2VucwGqbWluX3Rva2VucwCobG9n"
        "cHJvYnMBr3Byb21wdF9sb2dwcm9icwGlbWluX3DKAAAAALFmcmVxdWVuY3lfcGVuYWx0ecoAAAAAsHBy"
        "ZXNlbmNlX3BlbmFsdHnKAAAAALJyZXBldGl0aW9uX3BlbmFsdHnKP4AAAK5zdG9wX3Rva2VuX2lkc5HN"
        "B/etX2Vvc190b2tlbl9pZM0H+bNfYWxsX3N0b3BfdG9rZW5faWRzks0H980H+btyb3V0ZWRfZXhwZXJ0"
        "c19wcm9tcHRfc3RhcnQAwMtB2sOPHBfVK8DAwMDAAAAAwMKtY21wbC1kOTY3N2VkYsCBtGNoYXRfdGVt"
        "cGxhdGVfa3dhcmdzgMLAwA=="
    ),
}

# Keys of the sampling map that only frontends use: we never send them.
FRONTEND_ONLY = {
    *("stop", "bad_words", "n", "detokenize", "flat_logprobs", "skip_special_tokens"),
    *("spaces_between_special_tokens", "include_stop_str_in_output", "output_kind", "zzz_new"),
    *("ignore_eos", "skip_clone"),
}
SAMPLING_DEFAULTS = {
    "temperature": 1.0,
    "watermarking": True,
    "top_p": 1.0,
    "top_k": 0,
    "max_tokens": 16,
    "min_tokens": 0,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stop_token_ids": [],
    "_all_stop_token_ids": [],
    "routed_experts_prompt_start": 0,
}
CONSTRAINT_DEFAULTS = (None, False)
ADD_DEFAULTS: list[Any] = [*[None] * 11, 0, 0, 0, None, False, None, None, None, False, None, None]


def frames_of(entry: Entry) -> list[bytes]:
    assert entry.type_frame is not None
    return [entry.type_frame, *entry.frames]


def inlined(value: Any, frames: list[bytes]) -> Any:
    """Replace numbers of auxiliary frames by what is in them."""
    if isinstance(value, list):
        if len(value) == 3 and isinstance(value[0], str) and isinstance(value[1], list):
            data = value[2]
            ext = data if isinstance(data, msgpack.ExtType) else msgpack.ExtType(3, frames[data])
            return [value[0], value[1], ext]
        return [inlined(item, frames) for item in value]
    if isinstance(value, dict):
        return {key: inlined(item, frames) for key, item in value.items()}
    return value


def normalised(add: list[Any], frames: list[bytes]) -> list[Any]:
    """Fill in what encoders may leave out, and take out what only frontends use."""
    items = [*add, *ADD_DEFAULTS[len(add) :]][:22]
    if items[16] is None:
        items[16] = items[0]
    if items[2] is not None:
        items[2] = inlined(items[2], frames)
    if items[9] is not None:
        items[9] = inlined(items[9], frames)
    if items[3] is not None:
        sampling = {k: v for k, v in items[3].items() if k not in FRONTEND_ONLY}
        if "prompt_logprob_token_ids" in sampling:
            ids = sampling["prompt_logprob_token_ids"]
            sampling["prompt_logprob_token_ids"] = inlined(ids, frames)
        if "structured_outputs" in sampling:
            sampling["structured_outputs"] = {
                key: value
                for key, value in sampling["structured_outputs"].items()
                if value not in CONSTRAINT_DEFAULTS and key != "_backend_was_auto"
            }
        items[3] = SAMPLING_DEFAULTS | sampling
        items[3]["_all_stop_token_ids"] = sorted(items[3]["_all_stop_token_ids"])
    if items[4] is not None and len(items[4]) == 11 and items[4][10] is None:
        items[4] = items[4][:10]
    return items


@pytest.mark.parametrize("entry", ADDS, ids=str)
def test_a_golden_add_is_encoded_again_with_the_same_meaning(entry: Entry) -> None:
    add = decode_request(frames_of(entry))
    assert isinstance(add, Add)

    again = encode_add(
        add.request,
        internal_id=add.internal_id,
        client_index=add.client_index,
        current_wave=add.current_wave,
    )

    assert again[0] == entry.type_frame
    assert len(again) == 2
    assert normalised(raw(again[1]), again[1:]) == normalised(entry.raw(), entry.frames)


@pytest.mark.parametrize("name", PEER_ADDS)
def test_an_add_of_the_peer_is_encoded_again_exactly(name: str) -> None:
    payload = base64.b64decode(PEER_ADDS[name])
    add = decode_request([b"\0", payload])
    assert isinstance(add, Add)

    again = raw(encode_add(add.request, internal_id=add.internal_id)[1])

    assert again == raw(payload)
    assert list(again[3]) == list(raw(payload)[3])


@pytest.mark.parametrize("entry", [e for e in REQUESTS if e not in ADDS], ids=str)
def test_other_golden_requests_are_encoded_again_exactly(entry: Entry) -> None:
    request = decode_request(frames_of(entry))

    match request:
        case Abort(request_ids):
            again = encode_abort(request_ids)
        case Utility(client_index=client, call_id=call, method=method, args=args):
            again = encode_utility(call, method, args, client)
        case StartWave(wave, exclude):
            again = encode_start_dp_wave(wave, exclude)
        case _:
            pytest.fail("no other request exists")

    assert again[0] == entry.type_frame
    assert raw(again[1]) == entry.raw()


def test_values_of_a_golden_add_end_up_in_the_right_fields() -> None:
    add = decode_request(frames_of(find("add_all_sampling")))

    assert isinstance(add, Add)
    assert add.internal_id == "all_sampling-0011aabb"
    assert add.request.request_id == "all_sampling"
    sampling = add.request.sampling
    assert sampling is not None
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.75, 0.875, 40)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (1234, 128, 4)
    assert sampling.logit_bias == {5: 1.5, 6: -100.0}
    assert sampling.bad_words_token_ids == [[11], [12, 13]]
    assert sampling.eos_token_id == 2
    assert sampling.repetition_detection is not None
    assert sampling.repetition_detection.min_count == 3
    assert sampling.extra_args == {"key": "value", "n": 3}


def test_arrays_of_a_request_go_inline() -> None:
    embeds = Tensor("float32", (2, 100), bytes(800))
    request = EngineRequest(
        request_id="r", prompt_token_ids=[], prompt_embeds=embeds, sampling=SamplingParams()
    )

    frames = encode_add(request, internal_id="r-1")

    assert len(frames) == 2
    payload = raw(frames[1])
    assert payload[1] is None
    assert payload[9] == ["float32", [2, 100], msgpack.ExtType(3, bytes(800))]


def test_any_sequence_serves_as_a_list() -> None:
    sampling = SamplingParams(stop_token_ids=range(3), bad_words_token_ids=[range(2)])
    request = EngineRequest(request_id="r", prompt_token_ids=range(4), sampling=sampling)

    payload = raw(encode_add(request, internal_id="r-1")[1])

    assert payload[1] == [0, 1, 2, 3]
    assert payload[3]["stop_token_ids"] == [0, 1, 2]
    assert payload[3]["_bad_words_token_ids"] == [[0, 1]]


def test_a_constraint_carries_its_backend_and_nothing_that_is_not_set() -> None:
    constraint = StructuredOutputs(
        json={"type": "object"}, disable_any_whitespace=True, whitespace_pattern=" "
    )
    request = EngineRequest(
        request_id="r",
        prompt_token_ids=[1],
        sampling=SamplingParams(structured_outputs=constraint),
    )

    payload = raw(encode_add(request, internal_id="r-1")[1])

    assert payload[3]["structured_outputs"] == {
        "json": {"type": "object"},
        "disable_any_whitespace": True,
        "whitespace_pattern": " ",
        "_backend": "xgrammar",
    }


def test_late_chunking_is_sent_only_when_it_is_used() -> None:
    def pooling_of(params: PoolingParams) -> Any:
        request = EngineRequest(request_id="r", prompt_token_ids=[1], pooling=params)
        return raw(encode_add(request, internal_id="r-1")[1])[4]

    assert len(pooling_of(PoolingParams(task="embed"))) == 10
    assert pooling_of(PoolingParams(task="token_embed", late_chunking_params=[8]))[10] == [8]


def test_a_short_adapter_gets_its_defaults() -> None:
    lora = decode_lora(["sql", 3, "adapters/sql"])

    assert lora == LoraRequest(name="sql", int_id=3, path="adapters/sql")
    assert encode_lora(lora) == ["sql", 3, "adapters/sql", None, False, False]


@pytest.mark.parametrize("value", [2**64, "\ud800", object(), b"x".__class__])
def test_what_cannot_be_sent_is_refused(value: object) -> None:
    with pytest.raises(RequestRejected, match="cannot be encoded"):
        encode_utility(1, "collective_rpc", [value])


def test_endless_nesting_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(10_000):
        nested = [nested]

    with pytest.raises(RequestRejected, match="cannot be encoded"):
        encode_utility(1, "collective_rpc", nested)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "two frames"),
        ([b"\0"], "two frames"),
        ([b"\4", b"\x90"], "unknown request type"),
        ([b"\0", b"\x90"], "ADD has 0 elements"),
        ([b"\1", b"\x91\1"], "ABORT must be an array of text"),
        ([b"\3", b"\x93\0\1\xa1x"], "UTILITY has 3 elements"),
        ([b"\2", b"\x91\1"], "START_DP_WAVE has 1 elements"),
    ],
)
def test_what_would_deafen_an_engine_is_a_protocol_error(frames: list[bytes], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode_request(frames)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, 7, "request_id must be text"),
        (1, [True], "prompt_token_ids must be an array of integers"),
        (3, {"temperature": "hot"}, "sampling_params.temperature must be a number"),
        (3, {"max_tokens": None}, "max_tokens must be an integer, not nil"),
        (3, {"logit_bias": {"5": 1.0}}, "key of sampling_params.logit_bias must be an integer"),
        (5, None, "arrival_time must be a number"),
        (6, ["n", 1], "lora_request has 2 elements"),
        (9, ["float32", [2], 1], "array data is in frame 1, of 1"),
        (14, {"a": 1}, "trace_headers must have text values"),
    ],
)
def test_a_bad_element_of_an_add_is_named(index: int, value: object, message: str) -> None:
    payload: list[Any] = ["r", [1], None, {}, None, 1.0, *ADD_DEFAULTS[6:]]
    payload[index] = value

    with pytest.raises(ProtocolError, match=message):
        decode_request([b"\0", msgpack.packb(payload)])
