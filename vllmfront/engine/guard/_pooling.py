"""Pooling parameters."""

from collections.abc import Callable, Mapping
from typing import Any

from vllmfront.engine._request import PoolingParams
from vllmfront.engine.guard._checks import (
    check_boolean,
    check_integer,
    check_list,
    check_plain_map,
    check_text,
    check_token_ids,
    rejected,
    wrong_type,
)
from vllmfront.engine.guard._limits import GuardLimits

_FINAL_ONLY = 2
# What the engine's decoder lets through; the tasks that it lists are of other kinds as well.
_POOLING_TASKS = frozenset(
    {"embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify"}
)


def check_pooling(params: PoolingParams, limits: GuardLimits) -> None:
    """Check the parameters of one pooling request.

    Raises:
        RequestRejected: The engine would not survive them, or would refuse them.
    """
    if not isinstance(params, PoolingParams):
        raise wrong_type("pooling_params", "PoolingParams", params)
    supported = _POOLING_TASKS & limits.supported_tasks
    if not supported:
        raise rejected("This model does not support pooling", "task")
    if params.task is None or check_text(params.task, "task") not in supported:
        raise rejected(
            f"Unsupported task: {params.task!r} Supported tasks: {sorted(supported)}", "task"
        )
    check_boolean(params.requires_token_ids, "requires_token_ids")
    check_integer(params.output_kind, "output_kind", _FINAL_ONLY, _FINAL_ONLY)
    for name, check in _OPTIONAL.items():
        value = getattr(params, name)
        if value is not None:
            check(value, params, limits)


def _activation(value: Any, _params: PoolingParams, _limits: GuardLimits) -> None:
    check_boolean(value, "use_activation")


def _dimensions(value: Any, _params: PoolingParams, _limits: GuardLimits) -> None:
    check_integer(value, "dimensions", 1)


def _step_tag(value: Any, _params: PoolingParams, limits: GuardLimits) -> None:
    check_token_ids([value], "step_tag_id", limits.vocab_size)


def _returned(value: Any, _params: PoolingParams, limits: GuardLimits) -> None:
    check_token_ids(value, "returned_token_ids", limits.vocab_size)


def _skip_cache(value: Any, _params: PoolingParams, _limits: GuardLimits) -> None:
    check_boolean(value, "skip_reading_prefix_cache")


def _extra(value: Any, _params: PoolingParams, _limits: GuardLimits) -> None:
    check_plain_map(value, "extra_kwargs")


_MODES = ("cache_query", "score_doc")


def _late_interaction(value: Any, _params: PoolingParams, _limits: GuardLimits) -> None:
    name = "late_interaction_params"
    items = check_list(value, name)
    if len(items) not in (2, 3):
        raise rejected(f"{name} must be [mode, query_key, query_uses].", name)
    mode, key, uses = items if len(items) == 3 else (*items, None)  # noqa: PLR2004
    if check_text(mode, name) not in _MODES:
        raise rejected(f"mode must be 'cache_query' or 'score_doc', got {mode!r}", name)
    check_text(key, name)
    if mode == "cache_query" and uses is None:
        raise rejected("query_uses must be a positive integer for cache_query mode", name)
    if uses is not None:
        check_integer(uses, name, 1)


def _late_chunking(value: Any, params: PoolingParams, _limits: GuardLimits) -> None:
    name = "late_chunking_params"
    items = check_list(value, name)
    if len(items) != 1:
        raise rejected(f"{name} must be [chunk_size].", name)
    check_integer(items[0], name, 1)
    if params.task != "token_embed":
        raise rejected("Late chunking requires token_embed", name)
    if params.late_interaction_params is not None:
        raise rejected("Late chunking cannot be combined with late-interaction scoring", name)


_OPTIONAL: Mapping[str, Callable[[Any, PoolingParams, GuardLimits], None]] = {
    "use_activation": _activation,
    "dimensions": _dimensions,
    "step_tag_id": _step_tag,
    "returned_token_ids": _returned,
    "skip_reading_prefix_cache": _skip_cache,
    "late_interaction_params": _late_interaction,
    "extra_kwargs": _extra,
    "late_chunking_params": _late_chunking,
}
