"""Checks of decoded values: one line each, naming the field that is wrong."""

from collections.abc import Sequence
from typing import Any

from vllmfront.errors import ProtocolError


def wrong(name: str, wanted: str, value: object) -> ProtocolError:
    """Say that field *name* holds *value* where *wanted* belongs."""
    return ProtocolError(f"{name} must be {wanted}, not {type(value).__name__}")


def integer(value: object, name: str) -> int:
    if type(value) is not int:
        raise wrong(name, "an integer", value)
    return value


def number(value: object, name: str) -> float:
    if type(value) is not float and type(value) is not int:
        raise wrong(name, "a number", value)
    return value


def text(value: object, name: str) -> str:
    if type(value) is not str:
        raise wrong(name, "text", value)
    return value


def boolean(value: object, name: str) -> bool:
    if type(value) is not bool:
        raise wrong(name, "true or false", value)
    return value


def array(value: object, name: str) -> list[Any]:
    if type(value) is not list:
        raise wrong(name, "an array", value)
    return value


def text_map(value: object, name: str) -> dict[str, Any]:
    """Check for a map whose keys are text; the values may be anything."""
    if type(value) is not dict or not set(map(type, value)) <= {str}:
        raise wrong(name, "a map with text keys", value)
    return value


def text_pairs(value: object, name: str) -> dict[str, str]:
    """Check for a map from text to text."""
    pairs = text_map(value, name)
    if not set(map(type, pairs.values())) <= {str}:
        raise ProtocolError(f"{name} must have text values only")
    return pairs


def integers(value: object, name: str) -> list[int]:
    if type(value) is not list or not set(map(type, value)) <= {int}:
        raise wrong(name, "an array of integers", value)
    return value


def texts(value: object, name: str) -> list[str]:
    if type(value) is not list or not set(map(type, value)) <= {str}:
        raise wrong(name, "an array of text", value)
    return value


def padded(value: object, defaults: Sequence[Any], required: int, name: str) -> list[Any]:
    """Check for an array of at least *required* elements; fill up with *defaults*, cut the rest.

    Peers of another version send fewer elements or more.
    """
    items = array(value, name)
    if len(items) < required:
        raise ProtocolError(f"{name} has {len(items)} elements, needs {required}")
    count = len(defaults)
    if len(items) < count:
        return [*items, *defaults[len(items) :]]
    return items[:count] if len(items) > count else items
