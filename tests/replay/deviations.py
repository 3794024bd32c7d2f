"""What a replay tolerates. docs/compatibility.md lists each by its name, with the reason.

A deviation's function maps both what was recorded and what is ours to a common form: what it
takes away or writes alike may differ, all else may not. It works on plain values: JSON answers
(a stream is a list of events), or the payloads of frames.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from vllmfront.text import f32

Normalise = Callable[[Any], Any]


@attrs.frozen
class Deviation:
    """One tolerated difference."""

    name: str
    normalise: Normalise


def normalised(value: Any, deviations: Iterable[Deviation]) -> Any:
    """Return the common form of *value*."""
    for deviation in deviations:
        value = deviation.normalise(value)
    return value


# Answers.


def _without(*names: str) -> Normalise:
    """Take members away, wherever they are."""
    hidden = frozenset(names)

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items() if key not in hidden}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return value

    return walk


def _in_stream_choices(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Normalise:
    """Change each choice of each stream event; other answers stay as they are."""

    def walk(answer: Any) -> Any:
        if not isinstance(answer, list):
            return answer
        return [
            {**event, "choices": [change(choice) for choice in event["choices"]]}
            if isinstance(event, dict) and "choices" in event
            else event
            for event in answer
        ]

    return walk


def _without_nulls(choice: dict[str, Any]) -> dict[str, Any]:
    nulls = {"finish_reason", "logprobs"}
    return {key: item for key, item in choice.items() if item is not None or key not in nulls}


def _without_empty_content(choice: dict[str, Any]) -> dict[str, Any]:
    if choice.get("delta") == {"role": "assistant", "content": ""}:
        return {**choice, "delta": {"role": "assistant"}}
    return choice


def _of_served_models(answer: Any) -> Any:
    """Hide who serves, and the path of the model, which is that of the test."""
    if isinstance(answer, dict) and answer.get("object") == "list":
        return {**answer, "data": [_of_anybody(model) for model in answer["data"]]}
    return answer


def _of_anybody(model: dict[str, Any]) -> dict[str, Any]:
    root = None if model["parent"] is None else model["root"]
    return {**model, "owned_by": None, "root": root}


def _status_of_error(answer: Any) -> Any:
    return "an error" if isinstance(answer, dict) and "error" in answer else answer


_IDS_AND_TIMES = Deviation("ids and times", _without("id", "created"))

ANSWERS_AS_RUST: Sequence[Deviation] = (
    _IDS_AND_TIMES,
    Deviation("null members of chat chunks", _in_stream_choices(_without_nulls)),
    Deviation("content of the role chunk", _in_stream_choices(_without_empty_content)),
    Deviation("model list", _of_served_models),
    Deviation("version", _without("rust_frontend_version", "vllmfront_version")),
)

ANSWERS_AS_OLDER_RUST: Sequence[Deviation] = (
    *ANSWERS_AS_RUST,
    Deviation("answers of one shape for all engines", _without("metrics")),
    Deviation("errors of one shape for all engines", _status_of_error),
)

ANSWERS_AS_PYTHON: Sequence[Deviation] = (
    _IDS_AND_TIMES,
    Deviation("system_fingerprint", _without("system_fingerprint")),
    Deviation("reasoning tokens in usage", _without("completion_tokens_details")),
    Deviation(
        "members of completions that Python adds",
        _without("routed_experts", "weight_versions", "service_tier"),
    ),
)


# Frames: ADD payloads.

_ARRIVAL_TIME, _EXTERNAL_ID, _PARSER_KWARGS, _SAMPLING = 5, 16, 18, 3


def _without_elements(*indices: int) -> Normalise:
    def clear(payload: Any) -> Any:
        return [None if index in indices else item for index, item in enumerate(payload)]

    return clear


def _in_sampling(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Normalise:
    def apply(payload: Any) -> Any:
        return [change(item) if index == _SAMPLING else item for index, item in enumerate(payload)]

    return apply


def _without_greedy_filters(sampling: dict[str, Any]) -> dict[str, Any]:
    if sampling["temperature"] != 0:
        return sampling
    return _dropped(sampling, {"top_p", "top_k", "min_p"})


_ENGINE_DEFAULTS = {
    "max_tokens": 16,
    "min_tokens": 0,
    "routed_experts_prompt_start": 0,
}
_ONLY_PYTHONS_OWN = {"bad_words", "output_kind", "skip_clone", "stop"}


def _with_defaults(sampling: dict[str, Any]) -> dict[str, Any]:
    return _ENGINE_DEFAULTS | _dropped(sampling, _ONLY_PYTHONS_OWN)


def _with_short_floats(sampling: dict[str, Any]) -> dict[str, Any]:
    return {key: f32(item) if isinstance(item, float) else item for key, item in sampling.items()}


def _with_sorted_stops(sampling: dict[str, Any]) -> dict[str, Any]:
    return {**sampling, "_all_stop_token_ids": sorted(sampling["_all_stop_token_ids"])}


def _with_constraint_alone(sampling: dict[str, Any]) -> dict[str, Any]:
    constraint = sampling.get("structured_outputs")
    if constraint is None:
        return sampling
    set_alone = {key: item for key, item in constraint.items() if item not in {None, False}}
    return {**sampling, "structured_outputs": _dropped(set_alone, {"_backend_was_auto"})}


def _without_backend(sampling: dict[str, Any]) -> dict[str, Any]:
    constraint = sampling.get("structured_outputs")
    if constraint is None:
        return sampling
    return {**sampling, "structured_outputs": _dropped(constraint, {"_backend"})}


def _dropped(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {key: item for key, item in fields.items() if key not in names}


FRAMES_AS_RUST: Sequence[Deviation] = (
    Deviation("ids and times", _without_elements(_ARRIVAL_TIME, _EXTERNAL_ID)),
)

FRAMES_AS_OLDER_RUST: Sequence[Deviation] = (
    *FRAMES_AS_RUST,
    Deviation("backend of constraints", _in_sampling(_without_backend)),
)

FRAMES_AS_PYTHON: Sequence[Deviation] = (
    *FRAMES_AS_RUST,
    Deviation("filters of greedy requests", _in_sampling(_without_greedy_filters)),
    Deviation("defaults on the wire", _in_sampling(_with_defaults)),
    Deviation("32-bit sampling values", _in_sampling(_with_short_floats)),
    Deviation("order of stop ids", _in_sampling(_with_sorted_stops)),
    Deviation("form of constraints", _in_sampling(_with_constraint_alone)),
    Deviation("watermarking", _in_sampling(lambda s: _dropped(s, {"watermarking"}))),
    Deviation(
        "prefix cache flag", _in_sampling(lambda s: _dropped(s, {"skip_reading_prefix_cache"}))
    ),
    Deviation("template kwargs for the engine", _without_elements(_PARSER_KWARGS)),
)
