"""What filters and methods would make, worked out before they make it.

A guard gets the call's arguments, raises when the result would be too large, and returns the
arguments to call with, all positional.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vllmfront.chat._budget import BudgetExceeded, MeteredBudget

_MAX_COUNT = 1 << 17
"""Columns of ``batch`` and ``slice``."""

_MAX_PAIRS = 1024
"""Of ``dict(pairs)``: keys can be chosen so that each one collides with all the others."""

_MAX_PRODUCT = 1 << 24
"""Steps of the searches that can take as many as both lengths multiplied: about 50 ms, for
which nothing else runs."""

_MAX_INDENT = 256
_MAX_PRECISION = 100

Guard = Callable[..., tuple[Any, ...]]


def guard_percent(budget: MeteredBudget, text: str, values: Any) -> None:
    """Refuse ``text % values`` when widths or values make it too large."""
    members = values if isinstance(values, tuple) else (values,)
    size = len(text) + sum(int(number[:12]) for number in re.findall(r"\d+", text))
    if isinstance(values, dict):
        # By name, one value may be printed as often as there are conversions.
        size += text.count("%") * budget.weigh(values)
    for member in members:
        size += budget.weigh(member)
        if "*" in text and isinstance(member, int):
            size += abs(member)
    budget.charge(size)


def _format(budget: MeteredBudget, text: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    guard_percent(budget, str(text), kwargs or args)
    # The filter formats with either; its own check of both at once goes first.
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return (str(text) % kwargs,) if kwargs else (text, *args)


def _center(budget: MeteredBudget, value: Any, width: int = 80) -> tuple[Any, ...]:
    budget.charge(int(width))
    return value, width


def _indent(
    budget: MeteredBudget,
    text: Any,
    width: int | str = 4,
    first: bool = False,
    blank: bool = False,
) -> tuple[Any, ...]:
    lines = str(text).count("\n") + 2
    budget.charge(lines * (len(width) if isinstance(width, str) else width))
    return text, width, first, blank


def _join(
    budget: MeteredBudget, value: Iterable[Any], d: Any = "", attribute: Any = None
) -> tuple[Any, ...]:
    items = list(value)
    budget.charge(budget.weigh(items) + len(items) * len(str(d)))
    return items, d, attribute


def _replace(
    budget: MeteredBudget, text: Any, old: Any, new: Any, count: int | None = None
) -> tuple[Any, ...]:
    found = str(text).count(str(old)) if str(old) else len(str(text)) + 1
    budget.charge(len(str(text)) + found * len(str(new)))
    return (text, old, new) if count is None else (text, old, new, count)


def _batch(
    budget: MeteredBudget, value: Any, linecount: int, fill_with: Any = None
) -> tuple[Any, ...]:
    _check_limit("linecount", linecount, _MAX_COUNT)
    budget.charge(int(linecount))
    return value, linecount, fill_with


def _slice(
    budget: MeteredBudget, value: Any, slices: int, fill_with: Any = None
) -> tuple[Any, ...]:
    _check_limit("slices", slices, _MAX_COUNT)
    budget.charge(int(slices))
    return value, slices, fill_with


def _sum(_: MeteredBudget, iterable: Any, attribute: Any = None, start: Any = 0) -> tuple[Any, ...]:
    if not isinstance(start, int | float):
        raise BudgetExceeded("sum adds numbers only in a request's template")
    return iterable, attribute, start


def _round(
    _: MeteredBudget, value: Any, precision: int = 0, method: str = "common"
) -> tuple[Any, ...]:
    _check_limit("precision", precision, _MAX_PRECISION)
    return value, precision, method


def _to_json_guard(  # noqa: PLR0917 - as the filter's
    budget: MeteredBudget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> tuple[Any, ...]:
    if isinstance(indent, int):
        _check_limit("indent", indent, _MAX_INDENT)
    if indent is not None or separators is not None:
        # Written once in pieces, to learn the size without holding the whole.
        encoder = json.JSONEncoder(indent=indent, separators=separators)
        for piece in encoder.iterencode(value):
            budget.charge(len(piece))
    return value, ensure_ascii, indent, separators, sort_keys


def _trim(budget: MeteredBudget, value: Any, chars: str | None = None) -> tuple[Any, ...]:
    return (value, *_strip(budget, str(value), *(() if chars is None else (chars,))))


def guard_pairs(budget: MeteredBudget, *args: Any) -> tuple[Any, ...]:
    """Bound the pairs that a new dict is made of; another dict may have any length."""
    if not args or isinstance(args[0], dict):
        return args
    pairs = list(args[0])
    _check_limit("the pairs of a dict", len(pairs), _MAX_PAIRS)
    budget.charge(len(pairs))
    return (pairs, *args[1:])


def _check_limit(name: str, value: Any, limit: int) -> None:
    if abs(int(value)) > limit:
        raise BudgetExceeded(f"{name} may be {limit} at most in a request's template")


FILTER_GUARDS: Mapping[str, Guard] = {
    "batch": _batch,
    "center": _center,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "slice": _slice,
    "sum": _sum,
    "tojson": _to_json_guard,
    "trim": _trim,
}


def _padded(budget: MeteredBudget, _: str, width: int, *fill: str) -> tuple[Any, ...]:
    budget.charge(int(width))
    return width, *fill


def _expand_tabs(budget: MeteredBudget, text: str, tabsize: int = 8) -> tuple[Any, ...]:
    budget.charge(len(text) + text.count("\t") * int(tabsize))
    return (tabsize,)


def _join_method(budget: MeteredBudget, text: str, items: Iterable[Any]) -> tuple[Any, ...]:
    parts = list(items)
    budget.charge(budget.weigh(parts) + len(parts) * len(text))
    return (parts,)


def _replace_method(
    budget: MeteredBudget, text: str, old: str, new: str, count: int = -1
) -> tuple[Any, ...]:
    _replace(budget, text, old, new)
    return old, new, count


def _strip(_: MeteredBudget, text: str, *chars: str | None) -> tuple[Any, ...]:
    if chars and chars[0] is not None:
        _check_product(text, chars[0])
    return chars


def _search_backwards(_: MeteredBudget, text: str, *args: Any) -> tuple[Any, ...]:
    if args and isinstance(args[0], str):
        _check_product(text, args[0])
    return args


def _check_product(text: str, other: str) -> None:
    if len(text) * len(other) > _MAX_PRODUCT:
        raise BudgetExceeded("the template searches for too long a text")


METHOD_GUARDS: Mapping[str, Guard] = {
    "center": _padded,
    "expandtabs": _expand_tabs,
    "join": _join_method,
    "ljust": _padded,
    "lstrip": _strip,
    "replace": _replace_method,
    "rfind": _search_backwards,
    "rindex": _search_backwards,
    "rjust": _padded,
    "rpartition": _search_backwards,
    "rsplit": _search_backwards,
    "rstrip": _strip,
    "strip": _strip,
    "zfill": _padded,
}

METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (
        str,
        frozenset(
            [
                "capitalize",
                "casefold",
                "center",
                "count",
                "endswith",
                "expandtabs",
                "find",
                "format",
                "format_map",
                "index",
                "isalnum",
                "isalpha",
                "isascii",
                "isdecimal",
                "isdigit",
                "isidentifier",
                "islower",
                "isnumeric",
                "isprintable",
                "isspace",
                "istitle",
                "isupper",
                "join",
                "ljust",
                "lower",
                "lstrip",
                "partition",
                "removeprefix",
                "removesuffix",
                "replace",
                "rfind",
                "rindex",
                "rjust",
                "rpartition",
                "rsplit",
                "rstrip",
                "split",
                "splitlines",
                "startswith",
                "strip",
                "swapcase",
                "title",
                "upper",
                "zfill",
            ]
        ),
    ),
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    (list, frozenset(("copy", "count", "index"))),
    (tuple, frozenset(("count", "index"))),
    (range, frozenset(("count", "index"))),
    (set, frozenset(("copy",))),
    (frozenset, frozenset(("copy",))),
    (int, frozenset(("bit_length", "is_integer"))),
    (float, frozenset(("is_integer",))),
    (bytes, frozenset(())),
    (type, frozenset(())),
)
"""The methods of plain values that a request's template may call: those whose result is no
larger than what they read, and those with a guard."""
