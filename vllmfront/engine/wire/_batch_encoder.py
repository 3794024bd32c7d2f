"""What an engine stand-in sends on its output socket."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import msgspec

from vllmfront.engine._output import EngineOutput, FinishReason, Logprobs
from vllmfront.engine.wire._batch import UtilityAnswer
from vllmfront.engine.wire._msgpack import pack
from vllmfront.engine.wire._tensor import Tensor

INLINE_LIMIT = 256
"""Bytes from which on engines put an array into a frame of its own."""


def encode_batch(
    rows: Sequence[Sequence[Any]] = (),
    *,
    engine_index: int = 0,
    scheduler_stats: Mapping[str, Any] | None = None,
    timestamp: float = 0.0,
    utility: UtilityAnswer | None = None,
    finished_requests: Sequence[str] | None = None,
    wave_complete: int | None = None,
    start_wave: int | None = None,
    weight_version: str | None = None,
    inline_limit: int = INLINE_LIMIT,
) -> list[bytes]:
    """Return the frames of one message; arrays of *inline_limit* bytes or more follow it."""
    frames = [b""]

    def place(value: object) -> Any:
        if not isinstance(value, Tensor):
            raise TypeError(f"values of type {type(value).__name__} cannot be sent")
        if len(value.data) < inline_limit or not value.shape:
            return value.triple()
        frames.append(bytes(value.data))
        return [value.dtype, list(value.shape), len(frames) - 1]

    answer = None
    if utility is not None:
        result = None if utility.failure is not None else [None, utility.result]
        answer = [utility.call_id, utility.failure, result]
    frames[0] = pack(
        [
            engine_index,
            rows,
            scheduler_stats,
            timestamp,
            answer,
            finished_requests,
            wave_complete,
            start_wave,
            weight_version,
        ],
        msgspec.msgpack.Encoder(enc_hook=place).encode,
    )
    return frames


# Elements 7 to 18 of a row.
_NOTHING_ELSE = (None,) * 6 + (0,) + (None,) * 5


def plain_row(
    request_id: str, token_ids: Sequence[int], finish_reason: FinishReason | None = None
) -> list[Any]:
    """Return a row of new tokens, and perhaps the end, as cheaply as can be."""
    reason = None if finish_reason is None else int(finish_reason)
    return [request_id, token_ids, None, None, None, reason, None, *_NOTHING_ELSE]


def encode_row(request_id: str, output: EngineOutput) -> list[Any]:
    """Return the row of an update that carries more than tokens; for ``encode_batch``."""
    error, stats = output.error, output.prefill_stats
    return [
        request_id,
        list(output.new_token_ids),
        None if output.logprobs is None else _logprobs(output.logprobs, ("<i4", "<f4", "<i8"), 1),
        None
        if output.prompt_logprobs is None
        else _logprobs(output.prompt_logprobs, ("int32", "float32", "int32"), 2),
        output.pooling_output,
        None if output.finish_reason is None else int(output.finish_reason),
        output.stop_reason,
        [{"type": kind, "timestamp": at} for kind, at in output.events] or None,
        output.kv_transfer_params,
        output.ec_transfer_params,
        output.trace_headers,
        None if stats is None else attrs.asdict(stats),
        output.routed_experts,
        output.num_nans_in_logits,
        output.mm_cache_miss_hashes,
        None if output.sampling_mask is None else _sampling_mask(output.sampling_mask),
        output.spec_decode_metrics,
        output.prompt_token_id_logprobs,
        None if error is None else attrs.asdict(error),
    ]


def _logprobs(logprobs: Logprobs, dtypes: tuple[str, str, str], trailing: int) -> list[Any]:
    """Return ids, logprobs and ranks as arrays, and *trailing* elements that say nothing."""
    ids, values, ranks = dtypes
    return [
        Tensor.from_rows(ids, logprobs.token_ids),
        Tensor.from_rows(values, logprobs.logprobs),
        Tensor.from_values(ranks, logprobs.ranks),
        *[None] * trailing,
    ]


def _sampling_mask(masks: Sequence[Sequence[int]]) -> list[Any]:
    ids = [token for mask in masks for token in mask]
    if len(masks) == 1:
        return [Tensor.from_values("<i4", ids), None, None]
    offsets = [0, *itertools.accumulate(len(mask) for mask in masks)]
    return [Tensor.from_values("<i4", ids), Tensor.from_values("<i8", offsets), None]
