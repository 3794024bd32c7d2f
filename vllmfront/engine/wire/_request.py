"""What a frontend sends on an engine's input socket: frames after the routing identity."""

import enum
from collections.abc import Sequence
from typing import Any

import msgspec

from vllmfront.engine._request import (
    EngineRequest,
    LoraRequest,
    PoolingParams,
    SamplingParams,
)
from vllmfront.engine.wire._msgpack import pack
from vllmfront.engine.wire._sampling import encode_sampling, plain_list


class MessageType(enum.Enum):
    """The first frame of a request. Other bytes kill the engine or its input thread."""

    ADD = b"\x00"
    ABORT = b"\x01"
    START_DP_WAVE = b"\x02"
    UTILITY = b"\x03"


_ADD = MessageType.ADD.value
_ABORT = MessageType.ABORT.value
_START_DP_WAVE = MessageType.START_DP_WAVE.value
_UTILITY = MessageType.UTILITY.value


def pack_sampling(params: SamplingParams) -> bytes:
    """Return the wire form of *params*, for ``encode_add`` of all requests that share them."""
    return pack(encode_sampling(params))


def encode_add(
    request: EngineRequest,
    *,
    internal_id: str,
    client_index: int = 0,
    current_wave: int = 0,
    sampling: bytes | None = None,
) -> list[bytes]:
    """Return the frames that submit *request* under *internal_id*; arrays go inline.

    The request has passed the guard; ``sampling.n`` is not sent, since every choice is an engine
    request of its own. *sampling* is the form of ``request.sampling`` where it is known already.
    """
    params, pooling, lora = request.sampling, request.pooling, request.lora
    if sampling is not None:
        wire_sampling: Any = msgspec.Raw(sampling)
    else:
        wire_sampling = None if params is None else encode_sampling(params)
    prompt = request.prompt_token_ids
    payload = [
        internal_id,
        plain_list(prompt) if prompt or request.prompt_embeds is None else None,
        None if request.mm_features is None else plain_list(request.mm_features),
        wire_sampling,
        None if pooling is None else _encode_pooling(pooling),
        request.arrival_time,
        None if lora is None else encode_lora(lora),
        request.cache_salt,
        request.data_parallel_rank,
        request.prompt_embeds,
        request.prompt_is_token_ids,
        client_index,
        current_wave,
        request.priority,
        request.trace_headers,
        request.resumable,
        request.request_id,
        request.reasoning_ended,
        request.reasoning_parser_kwargs,
        request.abort_immediately,
        request.session_id,
        request.kv_hints,
    ]
    return [_ADD, pack(payload)]


def encode_lora(lora: LoraRequest) -> list[Any]:
    """Return the array form, also the argument of the utility call ``add_lora``."""
    return [
        lora.name,
        lora.int_id,
        lora.path,
        lora.base_model_name,
        lora.load_inplace,
        lora.is_3d_lora_weight,
    ]


def _encode_pooling(pooling: PoolingParams) -> list[Any]:
    wire = [
        pooling.use_activation,
        pooling.dimensions,
        pooling.step_tag_id,
        pooling.returned_token_ids,
        pooling.task,
        pooling.requires_token_ids,
        pooling.skip_reading_prefix_cache,
        pooling.late_interaction_params,
        pooling.extra_kwargs,
        pooling.output_kind,
    ]
    if pooling.late_chunking_params is not None:
        # Engines before 0.33 know ten elements and ignore the eleventh.
        wire.append(pooling.late_chunking_params)
    return wire


def encode_abort(ids: Sequence[str]) -> list[bytes]:
    """Return the frames that abort requests by internal id; the engine ignores unknown ones."""
    return [_ABORT, pack(list(ids))]


def encode_utility(
    call_id: int, method: str, args: Sequence[Any], client_index: int = 0
) -> list[bytes]:
    """Return the frames of a utility call; *args* are positional, in the engine's order.

    Raises:
        RequestRejected: An argument holds what MessagePack cannot carry.
    """
    return [_UTILITY, pack([client_index, call_id, method, list(args)])]


def encode_start_dp_wave(wave: int, exclude: int | None) -> list[bytes]:
    """Return what a coordinator publishes to wake its engines, but for index *exclude*."""
    return [_START_DP_WAVE, pack([wave, exclude])]
