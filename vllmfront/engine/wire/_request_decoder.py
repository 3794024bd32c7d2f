"""What an engine stand-in receives on its input socket."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from vllmfront.engine._request import EngineRequest, LoraRequest, PoolingParams
from vllmfront.engine.wire import _check as check
from vllmfront.engine.wire._msgpack import unpack
from vllmfront.engine.wire._request import MessageType
from vllmfront.engine.wire._sampling import decode_sampling
from vllmfront.engine.wire._tensor import decode_tensor, resolve_tensors
from vllmfront.errors import ProtocolError


@attrs.frozen(kw_only=True)
class Add:
    """A request submitted; ``request.request_id`` is the public id, if the frontend sent one."""

    internal_id: str
    request: EngineRequest
    client_index: int
    current_wave: int


@attrs.frozen
class Abort:
    """Internal ids of requests that the frontend gave up."""

    request_ids: list[str]


@attrs.frozen(kw_only=True)
class Utility:
    """A method call; the answer names ``call_id`` and goes to ``client_index``."""

    client_index: int
    call_id: int
    method: str
    args: list[Any]


@attrs.frozen
class StartWave:
    """A wake-up call to all engines but ``exclude``."""

    wave: int
    exclude: int | None


def decode_request(frames: Sequence[bytes | memoryview]) -> Add | Abort | Utility | StartWave:
    """Read one message, without its routing identity: type, payload, auxiliary frames.

    Raises:
        ProtocolError: An engine would not take it.
    """
    if len(frames) < 2:  # noqa: PLR2004 -- type and payload
        raise ProtocolError(f"a request needs two frames or more, not {len(frames)}")
    try:
        kind = MessageType(bytes(frames[0]))
    except ValueError as error:
        raise ProtocolError(f"unknown request type {bytes(frames[0][:8])!r}") from error
    # The payload counts as frame 0 of the arrays' numbering.
    return _DECODERS[kind](unpack(frames[1]), frames[1:])


# Defaults of the elements that an encoder may leave off; the first nine are required.
_ADD_REQUIRED = 9
_ADD_DEFAULTS = [
    *[None] * _ADD_REQUIRED,
    *(None, None, 0, 0, 0, None, False, None, None, None, False, None, None),
]


def _optional(decode: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, name: None if value is None else decode(value, name)


def _booleans(value: object, name: str) -> list[bool]:
    return [check.boolean(item, name) for item in check.array(value, name)]


# Element of the payload -> field of the request, and what the engine takes there.
_ADD_FIELDS: Mapping[int, tuple[str, Callable[[Any, str], Any]]] = {
    5: ("arrival_time", check.number),
    7: ("cache_salt", _optional(check.text)),
    8: ("data_parallel_rank", _optional(check.integer)),
    10: ("prompt_is_token_ids", _optional(_booleans)),
    13: ("priority", check.integer),
    14: ("trace_headers", _optional(check.text_pairs)),
    15: ("resumable", check.boolean),
    17: ("reasoning_ended", _optional(check.boolean)),
    18: ("reasoning_parser_kwargs", _optional(check.text_map)),
    19: ("abort_immediately", check.boolean),
    20: ("session_id", _optional(check.text)),
    21: ("kv_hints", _optional(check.text_map)),
}


def _decode_add(payload: object, frames: Sequence[bytes | memoryview]) -> Add:
    items = check.padded(payload, _ADD_DEFAULTS, _ADD_REQUIRED, "ADD")
    fields = {name: take(items[index], name) for index, (name, take) in _ADD_FIELDS.items()}
    internal_id = check.text(items[0], "request_id")
    prompt = items[1]
    features, sampling, pooling, lora, embeds = items[2], items[3], items[4], items[6], items[9]
    external_id = _optional(check.text)(items[16], "external_req_id")
    request = EngineRequest(
        request_id=internal_id if external_id is None else external_id,
        prompt_token_ids=[] if prompt is None else check.integers(prompt, "prompt_token_ids"),
        mm_features=None
        if features is None
        else resolve_tensors(check.array(features, "mm_features"), frames),
        sampling=None if sampling is None else decode_sampling(sampling, frames),
        pooling=None if pooling is None else _decode_pooling(pooling),
        lora=None if lora is None else decode_lora(lora),
        prompt_embeds=None if embeds is None else decode_tensor(embeds, frames),
        **fields,
    )
    return Add(
        internal_id=internal_id,
        request=request,
        client_index=check.integer(items[11], "client_index"),
        current_wave=check.integer(items[12], "current_wave"),
    )


_LORA_REQUIRED = 3


def decode_lora(value: object) -> LoraRequest:
    """Read the array form of an adapter.

    Raises:
        ProtocolError: An engine would not take it.
    """
    items = check.padded(value, [None] * _LORA_REQUIRED + [None, False, False], 3, "lora_request")
    return LoraRequest(
        name=check.text(items[0], "lora_name"),
        int_id=check.integer(items[1], "lora_int_id"),
        path=check.text(items[2], "lora_path"),
        base_model_name=_optional(check.text)(items[3], "base_model_name"),
        load_inplace=check.boolean(items[4], "load_inplace"),
        is_3d_lora_weight=check.boolean(items[5], "is_3d_lora_weight"),
    )


_POOLING_DEFAULTS = [None, None, None, None, None, False, None, None, None, 2, None]
_POOLING_FIELDS: tuple[tuple[str, Callable[[Any, str], Any]], ...] = (
    ("use_activation", _optional(check.boolean)),
    ("dimensions", _optional(check.integer)),
    ("step_tag_id", _optional(check.integer)),
    ("returned_token_ids", _optional(check.integers)),
    ("task", _optional(check.text)),
    ("requires_token_ids", check.boolean),
    ("skip_reading_prefix_cache", _optional(check.boolean)),
    ("late_interaction_params", _optional(check.array)),
    ("extra_kwargs", _optional(check.text_map)),
    ("output_kind", check.integer),
    ("late_chunking_params", _optional(check.array)),
)


def _decode_pooling(value: object) -> PoolingParams:
    items = check.padded(value, _POOLING_DEFAULTS, 0, "pooling_params")
    return PoolingParams(
        **{
            name: take(item, name)
            for (name, take), item in zip(_POOLING_FIELDS, items, strict=True)
        }
    )


def _decode_abort(payload: object, _frames: Sequence[bytes | memoryview]) -> Abort:
    return Abort(check.texts(payload, "ABORT"))


def _fixed(payload: object, count: int, name: str) -> list[Any]:
    items = check.array(payload, name)
    if len(items) != count:
        raise ProtocolError(f"{name} has {len(items)} elements, needs {count}")
    return items


def _decode_utility(payload: object, _frames: Sequence[bytes | memoryview]) -> Utility:
    client_index, call_id, method, args = _fixed(payload, 4, "UTILITY")
    return Utility(
        client_index=check.integer(client_index, "client_index"),
        call_id=check.integer(call_id, "call_id"),
        method=check.text(method, "method"),
        args=check.array(args, "args"),
    )


def _decode_wave(payload: object, _frames: Sequence[bytes | memoryview]) -> StartWave:
    wave, exclude = _fixed(payload, 2, "START_DP_WAVE")
    return StartWave(
        check.integer(wave, "wave"), _optional(check.integer)(exclude, "excluded engine")
    )


_DECODERS: Mapping[
    MessageType,
    Callable[[Any, Sequence[bytes | memoryview]], Add | Abort | Utility | StartWave],
] = {
    MessageType.ADD: _decode_add,
    MessageType.ABORT: _decode_abort,
    MessageType.UTILITY: _decode_utility,
    MessageType.START_DP_WAVE: _decode_wave,
}
