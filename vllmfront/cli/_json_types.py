"""Readers of single JSON values, strict as the reference: a value in, a value out.

They raise ``ValueError`` with what was expected and of what kind the value is, and never with the
value itself, which may be a secret.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Read = Callable[[Any], Any]

_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def flag(value: Any) -> bool:
    """Read true or false."""
    return bool(_of(bool, value, "a boolean"))


def text(value: Any) -> str:
    """Read a string."""
    return str(_of(str, value, "a string"))


def word(read: Callable[[str], Any]) -> Read:
    """Read a string as the option of ``serve`` reads it."""
    return lambda value: read(text(value))


def integer(low: int, high: int = 2**63 - 1) -> Read:
    """Read a whole number from *low* to *high*; 2.0 is none."""

    def parse(value: Any) -> int:
        number = int(_of(int, value, "an integer"))
        if not low <= number <= high:
            raise ValueError(f"{number} is not in {low}..={high}")
        return number

    return parse


def optional(read: Read) -> Read:
    """Read what *read* does, or null."""
    return lambda value: None if value is None else read(value)


def mapping(value: Any) -> Mapping[str, Any]:
    """Read an object."""
    found: dict[str, Any] = _of(dict, value, "an object")
    return found


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of strings."""
    return tuple(_of(str, item, "a string") for item in _of(list, value, "a list of strings"))


def text_or_texts(value: Any) -> tuple[str, ...]:
    """Read a string, or a list of them."""
    if isinstance(value, str):
        return (value,)
    return tuple(
        _of(str, item, "a string") for item in _of(list, value, "a string or a list of strings")
    )


def objects(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Read a list of objects."""
    return tuple(_of(dict, item, "an object") for item in _of(list, value, "a list of objects"))


def number(value: Any) -> float:
    """Read a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {kind(value)}")  # noqa: TRY004 - a bad value
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return float(value)


def kind(value: Any) -> str:
    """Name the kind of a JSON value, for messages."""
    return _KINDS.get(type(value), type(value).__name__)


def _of(wanted: type, value: Any, what: str) -> Any:
    # No subclasses: a boolean is no integer.
    if type(value) is not wanted:
        raise ValueError(f"expected {what}, got {kind(value)}")
    return value
