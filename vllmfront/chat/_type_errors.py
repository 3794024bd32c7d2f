"""Decoded JSON of the wanted types, or the words in which clients learn that it is not.

All of these raise ``MalformedRequest``; *where* is the path that it names.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from vllmfront.errors import MalformedRequest


def require_map(value: Any, where: str, expected: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        wrong_type(value, where, expected)
    return value


def require_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        wrong_type(value, where, "a sequence")
    return value


def require_member(owner: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in owner:
        malformed(where, f"missing field `{name}`")
    return owner[name]


def check_optional_string(owner: Mapping[str, Any], name: str, where: str) -> None:
    value = owner.get(name)
    if not isinstance(value, str | None):
        wrong_type(value, where, "a string")


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda value: f"boolean `{str(value).lower()}`",
    int: lambda value: f"integer `{value}`",
    float: lambda value: f"floating point `{value}`",
    str: lambda value: f"string {json.dumps(value, ensure_ascii=False)}",
    list: lambda _: "sequence",
    dict: lambda _: "map",
}


def describe_value(value: Any) -> str:
    """Name a decoded JSON value the way type errors do."""
    return _DESCRIPTIONS[type(value)](value)


def wrong_type(value: Any, where: str, expected: str) -> NoReturn:
    found = describe_value(value)
    malformed(where, f"invalid type: {found}, expected {expected}")


def malformed(where: str, what: str) -> NoReturn:
    raise MalformedRequest.misfit(what, where)
