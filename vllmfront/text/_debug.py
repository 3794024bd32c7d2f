"""Values as the peer's messages show them: in Rust's notation."""

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from vllmfront.text._json import f32_shortest

_MOST_SHOWN = 8192
"""Characters; clients choose how long the values are that an error message repeats."""


def debug_float(value: float) -> str:
    """Show a 64-bit float: ``2.0``, ``-0.10000000149011612``, ``1e39``."""
    return repr(float(value)).replace("e+", "e")


def display_f32(value: float) -> str:
    """Show a 32-bit float without an exponent or a needless point: ``3``, ``0.7``, ``inf``."""
    short = f32_shortest(value)
    if math.isnan(short):
        return "NaN"
    if math.isinf(short):
        return str(short)
    return format(Decimal(repr(short)), "f").removesuffix(".0")


def debug_string(text: str) -> str:
    """Show a string: quoted, with quotes, backslashes and control characters escaped."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}
    return '"' + "".join(escapes.get(c) or _visible(c) for c in text) + '"'


def _visible(char: str) -> str:
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"


def debug_value(value: str | Sequence[str] | None) -> str:
    """Show a string, or a list of strings; of enormous ones the beginning."""
    if value is None:
        return "Null"
    if isinstance(value, str):
        return f"String({next(_shown([value]))})"
    return "Array [" + ", ".join(f"String({item})" for item in _shown(value)) + "]"


def debug_strings(values: Sequence[str]) -> str:
    """Show a list of plain strings, ``["x", "y"]``; of an enormous one the beginning."""
    return "[" + ", ".join(_shown(values)) + "]"


def _shown(values: Iterable[str]) -> Iterator[str]:
    """Show strings one by one, until they have been enough for anybody to see what is wrong."""
    left = _MOST_SHOWN
    for value in values:
        if left <= 0:
            yield "..."
            return
        shown = value if len(value) <= left else value[:left] + "..."
        left -= len(shown) + 1
        yield debug_string(shown)
