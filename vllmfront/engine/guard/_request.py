"""One request as a whole: prompt, routing, adapter, and whichever parameters it has."""

from typing import Any

from vllmfront.engine._request import EngineRequest, LoraRequest, SamplingParams
from vllmfront.engine.guard._checks import (
    check_boolean,
    check_integer,
    check_list,
    check_number,
    check_plain_map,
    check_text,
    check_token_ids,
    rejected,
    shown,
    wrong_type,
)
from vllmfront.engine.guard._features import check_features
from vllmfront.engine.guard._limits import GuardLimits
from vllmfront.engine.guard._pooling import check_pooling
from vllmfront.engine.guard._sampling import check_sampling
from vllmfront.engine.wire import Tensor
from vllmfront.errors import ModelNotFound

# Seconds since the epoch, far beyond any clock.
_LATEST_ARRIVAL = 1e15
# Trio's clock, in seconds, begins anywhere.
_LATEST_DEADLINE = 1e15


def check_request(
    request: EngineRequest, limits: GuardLimits, *, sampling_passed: bool = False
) -> None:
    """Check everything about *request* that an engine would choke on.

    Engines decode and run requests without a safety net: one bad value makes an engine deaf for
    good, or ends it with all its requests. So every ADD passes here, whoever made it, and types
    are checked as strictly as values. *sampling_passed* says that the very same parameters, which
    cannot be changed, have passed under the same limits.

    Raises:
        RequestRejected: ``param`` names the field.
        ModelNotFound: Its adapter is not loaded.
    """
    check_text(request.request_id, "request_id", empty=False)
    length = _check_prompt(request, limits)
    if type(request.arrival_time) is not float or not 0 <= request.arrival_time < _LATEST_ARRIVAL:
        check_number(request.arrival_time, "arrival_time", 0, _LATEST_ARRIVAL)
    if type(request.priority) is not int or request.priority:
        check_integer(request.priority, "priority")
    check_boolean(request.resumable, "resumable")
    check_boolean(request.abort_immediately, "abort_immediately")
    _check_optional(request, limits)
    if not sampling_passed or request.pooling is not None:
        _check_parameters(request, limits, length)


def _check_optional(request: EngineRequest, limits: GuardLimits) -> None:
    # A table of these would be shorter, and cost each request a dozen look-ups.
    if request.lora is not None:
        _check_lora(request.lora, limits)
    if request.cache_salt is not None:
        check_text(request.cache_salt, "cache_salt")
    if request.data_parallel_rank is not None:
        _check_rank(request.data_parallel_rank, limits)
    if request.trace_headers is not None:
        _check_trace_headers(request.trace_headers)
    if request.session_id is not None:
        check_text(request.session_id, "session_id")
    if request.reasoning_ended is not None:
        check_boolean(request.reasoning_ended, "reasoning_ended")
    kwargs = request.reasoning_parser_kwargs
    if kwargs is not None and kwargs != _USUAL_KWARGS:
        check_plain_map(kwargs, "reasoning_parser_kwargs")
    if request.mm_features is not None:
        check_features(request.mm_features, limits)
    if request.kv_hints is not None:
        _check_kv_hints(request.kv_hints)
    if request.deadline is not None:
        check_number(request.deadline, "deadline", -_LATEST_DEADLINE, _LATEST_DEADLINE)


def _check_parameters(request: EngineRequest, limits: GuardLimits, length: int) -> None:
    sampling, pooling = request.sampling, request.pooling
    if (sampling is None) == (pooling is None):
        raise rejected("A request needs sampling or pooling parameters, not both.", "sampling")
    if pooling is not None:
        if request.resumable:
            raise rejected("Streaming input does not go with pooling.", "resumable")
        check_pooling(pooling, limits)
        return
    if not isinstance(sampling, SamplingParams):
        raise wrong_type("sampling_params", "SamplingParams", sampling)
    if "generate" not in limits.supported_tasks:
        raise rejected("This model does not support generation", "sampling")
    check_sampling(sampling, limits, length)


def _check_prompt(request: EngineRequest, limits: GuardLimits) -> int:
    """Check token ids and embeddings; return the prompt's length in positions."""
    ids, embeds = request.prompt_token_ids, request.prompt_embeds
    length = len(check_token_ids(ids, "prompt_token_ids", limits.vocab_size))
    if embeds is not None:
        rows = _check_embeds(embeds, limits)
        if ids and length != rows:
            raise rejected(
                f"prompt_embeds has {rows} rows for {length} prompt tokens.", "prompt_embeds"
            )
        length = rows
    mask = request.prompt_is_token_ids
    if mask is not None:
        if embeds is None or not ids:
            raise rejected(
                "prompt_is_token_ids needs prompt_token_ids and prompt_embeds.",
                "prompt_is_token_ids",
            )
        if len(check_list(mask, "prompt_is_token_ids")) != length:
            raise rejected(
                "prompt_is_token_ids must have the same length as prompt_embeds "
                f"(expected {length}, got {len(mask)}).",
                "prompt_is_token_ids",
            )
        for item in mask:
            check_boolean(item, "prompt_is_token_ids")
    if length == 0:
        raise rejected("The decoder prompt cannot be empty", "prompt_token_ids")
    most = limits.max_model_len
    # A generated token needs a place of its own.
    if most is not None and length > most - (request.pooling is None):
        raise rejected(
            f"The decoder prompt (length {length}) leaves no room in the maximum model length "
            f"of {most}.",
            "input_tokens",
        )
    return length


def _check_embeds(value: object, limits: GuardLimits) -> int:
    name = "prompt_embeds"
    if not isinstance(value, Tensor):
        raise wrong_type(name, "a Tensor", value)
    if limits.hidden_size is None:
        raise rejected("prompt_embeds are not enabled on this engine.", name)
    if not value.floating or len(value.shape) != 2 or value.shape[1] != limits.hidden_size:  # noqa: PLR2004
        raise rejected(
            f"{name} must be a floating-point array of shape [n, {limits.hidden_size}], got "
            f"{value.dtype} {list(value.shape)}.",
            name,
        )
    return value.shape[0]


def _check_lora(value: Any, limits: GuardLimits) -> None:
    name = "lora"
    if not isinstance(value, LoraRequest):
        raise wrong_type(name, "LoraRequest", value)
    check_text(value.name, "lora name", empty=False)
    check_integer(value.int_id, "lora id", 1)
    check_text(value.path, "lora path", empty=False)
    if value.base_model_name is not None:
        check_text(value.base_model_name, "lora base model name")
    check_boolean(value.load_inplace, "load_inplace")
    check_boolean(value.is_3d_lora_weight, "is_3d_lora_weight")
    if value.int_id not in limits.lora_ids:
        raise ModelNotFound(f"The model `{value.name}` does not exist.", param="model")


def _check_rank(value: Any, limits: GuardLimits) -> None:
    name = "data_parallel_rank"
    check_integer(value, name)
    if not 0 <= value < limits.num_ranks:
        raise rejected(f"{name} {shown(value)} is out of range [0, {limits.num_ranks}).", name)


def _check_trace_headers(value: Any) -> None:
    name = "trace_headers"
    if type(value) is not dict:
        raise wrong_type(name, "a map", value)
    for key, item in value.items():
        check_text(key, name)
        check_text(item, name)


_USUAL_KWARGS: dict[str, Any] = {"chat_template_kwargs": {}}
"""What goes with every request that has no template arguments."""


_HINT_TEXTS = ("protocol_version", "message_id")
_ACTION_TEXTS = ("action_id", "action_type", "action_version")


def _check_kv_hints(value: Any) -> None:
    name = "kv_hints"
    check_plain_map(value, name)
    for key in _HINT_TEXTS:
        check_text(value.get(key), f"{name}.{key}")
    for action in check_list(value.get("actions"), f"{name}.actions"):
        if type(action) is not dict:
            raise wrong_type(f"{name}.actions", "a list of maps", action)
        for key in _ACTION_TEXTS:
            check_text(action.get(key), f"{name}.actions.{key}")
        if type(action.get("payload")) is not dict:
            raise wrong_type(f"{name}.actions.payload", "a map", action.get("payload"))
