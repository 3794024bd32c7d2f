"""Sampling parameters: a map whose absent keys mean the default."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllmfront.engine._request import RepetitionDetection, SamplingParams, StructuredOutputs
from vllmfront.engine.wire import _check as check
from vllmfront.engine.wire._tensor import decode_tensor
from vllmfront.errors import ProtocolError


def encode_sampling(params: SamplingParams) -> dict[str, Any]:
    """Return the map, keys in the peer's order; what only frontends use is left out."""
    wire: dict[str, Any] = {
        "temperature": params.temperature,
        "watermarking": params.watermarking,
        "top_p": params.top_p,
        "top_k": params.top_k,
    }
    if params.seed is not None:
        wire["seed"] = params.seed
    wire["max_tokens"] = params.max_tokens
    wire["min_tokens"] = params.min_tokens
    if params.logprobs is not None:
        wire["logprobs"] = params.logprobs
    if params.prompt_logprobs is not None:
        wire["prompt_logprobs"] = params.prompt_logprobs
    wire["min_p"] = params.min_p
    wire["frequency_penalty"] = params.frequency_penalty
    wire["presence_penalty"] = params.presence_penalty
    wire["repetition_penalty"] = params.repetition_penalty
    wire["stop_token_ids"] = plain_list(params.stop_token_ids)
    if params.eos_token_id is not None:
        wire["_eos_token_id"] = params.eos_token_id
    wire["_all_stop_token_ids"] = plain_list(params.all_stop_token_ids)
    for field, key, encode in _RARE:
        value = getattr(params, field)
        if value is not None:
            wire[key] = value if encode is None else encode(value)
    wire["routed_experts_prompt_start"] = params.routed_experts_prompt_start
    return wire


def plain_list(values: Sequence[Any]) -> Sequence[Any]:
    """Return what the packer takes as an array: other sequences become lists."""
    return values if isinstance(values, (list, tuple)) else list(values)


def _plain_lists(values: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    return [plain_list(row) for row in values]


def _plain_map(values: Mapping[Any, Any]) -> dict[Any, Any]:
    return dict(values)


_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def _encode_structured(constraint: StructuredOutputs) -> dict[str, Any]:
    wire: dict[str, Any] = {
        name: value for name in _CONSTRAINTS if (value := getattr(constraint, name)) is not None
    }
    if isinstance(constraint.json, Mapping):
        wire["json"] = dict(constraint.json)
    if constraint.choice is not None:
        wire["choice"] = plain_list(constraint.choice)
    if constraint.disable_any_whitespace:
        wire["disable_any_whitespace"] = True
    if constraint.disable_additional_properties:
        wire["disable_additional_properties"] = True
    if constraint.whitespace_pattern is not None:
        wire["whitespace_pattern"] = constraint.whitespace_pattern
    wire["_backend"] = constraint.backend
    return wire


def _encode_repetition(detection: RepetitionDetection) -> dict[str, int]:
    return {
        "max_pattern_size": detection.max_pattern_size,
        "min_pattern_size": detection.min_pattern_size,
        "min_count": detection.min_count,
    }


# What most requests do not set: our field, its key, and how its value is made plain.
_RARE: tuple[tuple[str, str, Callable[[Any], Any] | None], ...] = (
    ("logprob_token_ids", "logprob_token_ids", plain_list),
    ("logit_bias", "logit_bias", _plain_map),
    ("allowed_token_ids", "allowed_token_ids", plain_list),
    ("bad_words_token_ids", "_bad_words_token_ids", _plain_lists),
    ("structured_outputs", "structured_outputs", _encode_structured),
    ("extra_args", "extra_args", _plain_map),
    ("skip_reading_prefix_cache", "skip_reading_prefix_cache", None),
    ("thinking_token_budget", "thinking_token_budget", None),
    ("repetition_detection", "repetition_detection", _encode_repetition),
    ("stream_interval", "stream_interval", None),
    ("prompt_logprob_token_ids", "prompt_logprob_token_ids", None),
    ("prompt_logprob_start", "prompt_logprob_start", None),
    ("trace_decode_token_ids", "trace_decode_token_ids", plain_list),
)


def _integer_rows(value: object, name: str) -> list[list[int]]:
    return [check.integers(row, name) for row in check.array(value, name)]


def _bias(value: object, name: str) -> dict[int, float]:
    if type(value) is not dict:
        raise check.wrong(name, "a map", value)
    return {
        check.integer(token, f"key of {name}"): check.number(bias, name)
        for token, bias in value.items()
    }


def _decode_repetition(value: object, name: str) -> RepetitionDetection:
    fields = check.text_map(value, name)
    return RepetitionDetection(
        **{
            key: check.integer(fields[key], f"{name}.{key}")
            for key in ("max_pattern_size", "min_pattern_size", "min_count")
            if key in fields
        }
    )


def _json_constraint(value: object, name: str) -> str | dict[str, Any]:
    return value if type(value) is str else check.text_map(value, name)


_STRUCTURED: Mapping[str, tuple[str, Callable[[Any, str], Any]]] = {
    "json": ("json", _json_constraint),
    "regex": ("regex", check.text),
    "choice": ("choice", check.texts),
    "grammar": ("grammar", check.text),
    "json_object": ("json_object", check.boolean),
    "structural_tag": ("structural_tag", check.text),
    "disable_any_whitespace": ("disable_any_whitespace", check.boolean),
    "disable_additional_properties": ("disable_additional_properties", check.boolean),
    "whitespace_pattern": ("whitespace_pattern", check.text),
    "_backend": ("backend", check.text),
}


def _decode_structured(value: object, name: str) -> StructuredOutputs:
    return StructuredOutputs(**_decode_map(check.text_map(value, name), _STRUCTURED, name))


_SAMPLING: Mapping[str, tuple[str, Callable[[Any, str], Any]]] = {
    "temperature": ("temperature", check.number),
    "watermarking": ("watermarking", check.boolean),
    "top_p": ("top_p", check.number),
    "top_k": ("top_k", check.integer),
    "seed": ("seed", check.integer),
    "max_tokens": ("max_tokens", check.integer),
    "min_tokens": ("min_tokens", check.integer),
    "logprobs": ("logprobs", check.integer),
    "prompt_logprobs": ("prompt_logprobs", check.integer),
    "min_p": ("min_p", check.number),
    "frequency_penalty": ("frequency_penalty", check.number),
    "presence_penalty": ("presence_penalty", check.number),
    "repetition_penalty": ("repetition_penalty", check.number),
    "stop_token_ids": ("stop_token_ids", check.integers),
    "_eos_token_id": ("eos_token_id", check.integer),
    "_all_stop_token_ids": ("all_stop_token_ids", check.integers),
    "logprob_token_ids": ("logprob_token_ids", check.integers),
    "logit_bias": ("logit_bias", _bias),
    "allowed_token_ids": ("allowed_token_ids", check.integers),
    "_bad_words_token_ids": ("bad_words_token_ids", _integer_rows),
    "structured_outputs": ("structured_outputs", _decode_structured),
    "extra_args": ("extra_args", check.text_map),
    "skip_reading_prefix_cache": ("skip_reading_prefix_cache", check.boolean),
    "thinking_token_budget": ("thinking_token_budget", check.integer),
    "repetition_detection": ("repetition_detection", _decode_repetition),
    "stream_interval": ("stream_interval", check.integer),
    "prompt_logprob_start": ("prompt_logprob_start", check.integer),
    "trace_decode_token_ids": ("trace_decode_token_ids", check.integers),
    "routed_experts_prompt_start": ("routed_experts_prompt_start", check.integer),
}


def _decode_map(
    wire: Mapping[str, Any],
    fields: Mapping[str, tuple[str, Callable[[Any, str], Any]]],
    name: str,
) -> dict[str, Any]:
    """Decode the known keys of *wire*; nil and absent mean the default."""
    return {
        field: decode(wire[key], f"{name}.{key}")
        for key, (field, decode) in fields.items()
        if wire.get(key) is not None
    }


def decode_sampling(value: object, frames: Sequence[bytes | memoryview]) -> SamplingParams:
    """Read the map as an engine does; keys that only frontends use are ignored.

    Raises:
        ProtocolError: A value has another type than the engine declares for it.
    """
    name = "sampling_params"
    wire = check.text_map(value, name)
    if "max_tokens" in wire and wire["max_tokens"] is None:
        raise ProtocolError(f"{name}.max_tokens must be an integer, not nil")
    params = _decode_map(wire, _SAMPLING, name)
    scored = wire.get("prompt_logprob_token_ids")
    if scored is not None:
        params["prompt_logprob_token_ids"] = decode_tensor(scored, frames)
    return SamplingParams(**params)
