"""Multimodal features: the structure that the engine's decoder insists on."""

from typing import Any

from vllmfront.engine.guard._checks import (
    MAX_DEPTH,
    check_integer,
    check_list,
    check_plain,
    check_text,
    rejected,
    wrong_type,
)
from vllmfront.engine.guard._limits import GuardLimits
from vllmfront.engine.wire import Tensor

_NAME = "mm_features"
_FIELD_KINDS = frozenset({"batched", "flat", "shared"})


def check_features(value: Any, limits: GuardLimits) -> None:
    """Check the features of a prompt.

    Raises:
        RequestRejected: The model takes none, or one is not built as the engine expects.
    """
    for feature in check_list(value, _NAME):
        if not limits.multimodal:
            # A text model would wait for ever for an encoder that it does not have.
            raise rejected("This model takes text only.", _NAME)
        _check_feature(_map(feature, _NAME))


def _map(value: object, name: str) -> dict[Any, Any]:
    if type(value) is not dict:
        raise wrong_type(name, "a map", value)
    return value


def _check_feature(feature: dict[Any, Any]) -> None:
    check_text(feature.get("modality"), f"{_NAME}.modality", empty=False)
    check_text(feature.get("identifier"), f"{_NAME}.identifier", empty=False)
    if feature.get("mm_hash") is not None:
        check_text(feature["mm_hash"], f"{_NAME}.mm_hash")
    position = _map(feature.get("mm_position"), f"{_NAME}.mm_position")
    check_integer(position.get("offset"), f"{_NAME}.mm_position.offset", 0)
    length = check_integer(position.get("length"), f"{_NAME}.mm_position.length", 1)
    mask = position.get("is_embed")
    if mask is not None and not (
        isinstance(mask, Tensor) and mask.dtype == "bool" and mask.shape == (length,)
    ):
        raise rejected(f"{_NAME}.mm_position.is_embed must be a bool tensor [{length}].", _NAME)
    if feature.get("data") is not None:
        for key, item in _map(feature["data"], f"{_NAME}.data").items():
            check_text(key, f"{_NAME}.data key")
            _check_argument(_map(item, f"{_NAME}.data.{key}"), f"{_NAME}.data.{key}")


def _check_argument(item: dict[Any, Any], name: str) -> None:
    _check_value(item.get("data"), name, MAX_DEPTH)
    field = check_list(item.get("field"), f"{name}.field")
    if len(field) != 2 or check_text(field[0], _NAME) not in _FIELD_KINDS:  # noqa: PLR2004
        raise rejected(f"{name}.field must be [batched, flat or shared, options].", _NAME)
    check_plain(_map(field[1], f"{name}.field"), f"{name}.field")


def _check_value(value: object, name: str, depth: int) -> None:
    if isinstance(value, Tensor):
        return
    if isinstance(value, (list, tuple)) and depth:
        for item in value:
            _check_value(item, name, depth - 1)
    elif type(value) is str or isinstance(value, dict):
        raise wrong_type(name, "a tensor, a number or a list of them", value)
    else:
        check_plain(value, name, depth)
