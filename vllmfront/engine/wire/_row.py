"""One row of an engine's message, in full: logprobs, statistics, errors and the rest."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from vllmfront.engine._output import (
    EngineError,
    EngineOutput,
    FinishReason,
    Logprobs,
    PrefillStats,
)
from vllmfront.engine.wire import _check as check
from vllmfront.engine.wire._tensor import Tensor, decode_tensor
from vllmfront.errors import ProtocolError

Frames = Sequence[bytes | memoryview]

# The last row of most requests ends with why it is the last, and has nothing before.
_UP_TO_REASON = 6
_NOTHING = [None] * 3

_KNOWN_REASONS = {int(reason): reason for reason in FinishReason}


def decode_output(row: object, frames: Frames, weight_version: str | None = None) -> EngineOutput:
    """Decode one row; *frames* is the whole message, for arrays in auxiliary frames.

    Fields that a newer engine appends are ignored, fields that an older one lacks are empty.

    Raises:
        ProtocolError: The row is unusable; the message names the field. Other rows are not
            affected.
    """
    if type(row) is not list or len(row) < 2:  # noqa: PLR2004 -- id and tokens
        raise ProtocolError("an output must be an array of two elements or more")
    if len(row) == _UP_TO_REASON and row[2:5] == _NOTHING and type(row[5]) is int:
        return EngineOutput(
            new_token_ids=check.integers(row[1], "output field new_token_ids"),
            finish_reason=_KNOWN_REASONS.get(row[5], FinishReason.ERROR),
            weight_version=weight_version,
        )
    fields: dict[str, Any] = {}
    for value, field in zip(row[2:], _FIELDS, strict=False):
        if value is None:
            continue
        name, decode = field
        try:
            fields[name] = decode(value, frames)
        except ProtocolError as error:
            raise ProtocolError(f"output field {name}: {error}") from error
    return EngineOutput(
        new_token_ids=check.integers(row[1], "output field new_token_ids"),
        weight_version=weight_version,
        **fields,
    )


def _finish_reason(value: object, _frames: Frames) -> FinishReason:
    return _KNOWN_REASONS.get(check.integer(value, "it"), FinishReason.ERROR)


def _stop_reason(value: object, _frames: Frames) -> int | str:
    return value if type(value) is str else check.integer(value, "it")


def _rows(value: object, frames: Frames, axes: int, *, floating: bool = False) -> Any:
    """Decode an array of known rank and kind into nested lists; the width is not fixed."""
    tensor = decode_tensor(value, frames)
    if len(tensor.shape) != axes:
        raise ProtocolError(f"array of shape {list(tensor.shape)} needs {axes} axes")
    if tensor.floating != floating:
        raise ProtocolError(f"array has dtype {tensor.dtype}, of the wrong kind")
    return tensor.tolist()


def _logprobs(value: object, frames: Frames) -> Logprobs:
    """Decode ``[ids, logprobs, ranks, ...]``; prompt logprobs have the same first three."""
    items = check.array(value, "it")
    if len(items) < 3:  # noqa: PLR2004 -- ids, logprobs, ranks
        raise ProtocolError("logprobs need three arrays")
    token_ids = _rows(items[0], frames, 2)
    logprobs = _rows(items[1], frames, 2, floating=True)
    ranks = _rows(items[2], frames, 1)
    if not len(token_ids) == len(logprobs) == len(ranks) or (
        token_ids and len(token_ids[0]) != len(logprobs[0])
    ):
        raise ProtocolError("logprobs have arrays of different lengths")
    return Logprobs(token_ids=token_ids, logprobs=logprobs, ranks=ranks)


def _tensor(value: object, frames: Frames) -> Tensor:
    return decode_tensor(value, frames)


def _events(value: object, _frames: Frames) -> tuple[tuple[int, float], ...]:
    return tuple(_event(item) for item in check.array(value, "it"))


def _event(item: object) -> tuple[int, float]:
    event = check.text_map(item, "event")
    return (
        check.integer(event.get("type"), "event.type"),
        check.number(event.get("timestamp"), "event.timestamp"),
    )


def _text_map(value: object, _frames: Frames) -> dict[str, Any]:
    return check.text_map(value, "it")


def _text_pairs(value: object, _frames: Frames) -> dict[str, str]:
    return check.text_pairs(value, "it")


_PREFILL_FIELDS = (
    "num_prompt_tokens",
    "num_computed_tokens",
    "num_cached_tokens",
    "num_local_cached_tokens",
    "num_external_cached_tokens",
    "num_cache_creation_tokens",
)


def _prefill_stats(value: object, _frames: Frames) -> PrefillStats:
    stats = check.text_map(value, "it")
    return PrefillStats(
        **{name: check.integer(stats[name], name) for name in _PREFILL_FIELDS if name in stats}
    )


def _count(value: object, _frames: Frames) -> int:
    return check.integer(value, "it")


def _texts(value: object, _frames: Frames) -> list[str]:
    return check.texts(value, "it")


def _sampling_mask(value: object, frames: Frames) -> list[list[int]]:
    """Return the ids that each new token was chosen from, one list a position."""
    items = check.padded(value, [None, None, None], 1, "it")
    ids: list[int] = _rows(items[0], frames, 1)
    if items[1] is None:
        return [ids]
    offsets: list[int] = _rows(items[1], frames, 1)
    if offsets != sorted(offsets) or (offsets and not 0 <= offsets[0] <= offsets[-1] <= len(ids)):
        raise ProtocolError("its offsets do not fit its ids")
    return [ids[start:end] for start, end in itertools.pairwise(offsets)]


def _error(value: object, _frames: Frames) -> EngineError:
    error = check.text_map(value, "it")
    return EngineError(
        code=check.text(error.get("code"), "code"),
        message=check.text(error.get("message"), "message"),
        retryable=check.boolean(error.get("retryable", False), "retryable"),
    )


# Elements 2 to 18, in order.
_FIELDS: tuple[tuple[str, Callable[[Any, Frames], Any]], ...] = (
    ("logprobs", _logprobs),
    ("prompt_logprobs", _logprobs),
    ("pooling_output", _tensor),
    ("finish_reason", _finish_reason),
    ("stop_reason", _stop_reason),
    ("events", _events),
    ("kv_transfer_params", _text_map),
    ("ec_transfer_params", _text_map),
    ("trace_headers", _text_pairs),
    ("prefill_stats", _prefill_stats),
    ("routed_experts", _tensor),
    ("num_nans_in_logits", _count),
    ("mm_cache_miss_hashes", _texts),
    ("sampling_mask", _sampling_mask),
    ("spec_decode_metrics", _text_map),
    ("prompt_token_id_logprobs", _tensor),
    ("error", _error),
)
