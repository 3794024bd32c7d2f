"""Checks of single values; each names the field and says what would be right."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from vllmfront.errors import RequestRejected

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1
# Token ids are 32-bit integers in every engine, whatever its vocabulary.
_INT32_MAX = (1 << 31) - 1

MAX_DEPTH = 64
"""Levels of nested maps and arrays in free-form values; the engine walks them recursively."""


def rejected(message: str, param: str) -> RequestRejected:
    return RequestRejected(message, param=param)


def wrong_type(name: str, wanted: str, value: object) -> RequestRejected:
    return rejected(f"{name} must be {wanted}, got {type(value).__name__}.", name)


# Python refuses to print integers of thousands of digits.
_LONGEST_PRINTED = 1 << 80


def shown(value: int) -> str:
    """Return *value* for a message."""
    return str(value) if abs(value) < _LONGEST_PRINTED else "an enormous integer"


def check_integer(value: object, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    if type(value) is not int:
        raise wrong_type(name, "an integer", value)
    if not low <= value <= high:
        bounds = f"in [{low}, {high}]"
        if high == INT64_MAX:
            bounds = f"at least {low}" if value < low else f"at most {high}"
        raise rejected(f"{name} must be {bounds}, got {shown(value)}.", name)
    return value


def check_number(value: object, name: str, low: float, high: float) -> float:
    """Check for a number from *low* to *high*; NaN and infinity never are."""
    if type(value) is not float:
        if type(value) is not int:
            raise wrong_type(name, "a number", value)
        # An integer is allowed where a float is declared, but only of 64 bits.
        check_integer(value, name)
    if not low <= value <= high or not math.isfinite(value):
        raise rejected(f"{name} must be in [{low:g}, {high:g}], got {value}.", name)
    return value


def check_boolean(value: object, name: str) -> None:
    if type(value) is not bool:
        raise wrong_type(name, "true or false", value)


def check_text(value: object, name: str, *, empty: bool = True) -> str:
    """Check for text that UTF-8 can carry: lone surrogates come from JSON's escapes."""
    if type(value) is not str:
        raise wrong_type(name, "text", value)
    if not value and not empty:
        raise rejected(f"{name} cannot be an empty string.", name)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise rejected(f"{name} holds a lone surrogate, which is no text.", name) from None
    return value


def check_list(value: object, name: str) -> Sequence[Any]:
    if type(value) is not list and type(value) is not tuple:
        raise wrong_type(name, "a list", value)
    return value


@functools.cache
def _ids_below(bound: int) -> Any:
    """Return the type of lists of token ids, which msgspec checks at 6 ns an element."""
    return list[Annotated[int, msgspec.Meta(ge=0, lt=bound)]]


def are_token_ids(values: Sequence[object], bound: int) -> bool:
    """Tell whether a list holds integers from 0 to below *bound* and nothing else."""
    try:
        msgspec.convert(values, _ids_below(bound))
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


def check_token_ids(values: object, name: str, vocab_size: int | None) -> Sequence[int]:
    """Check for a list of ids that the model's embedding and logits have."""
    ids = check_list(values, name)
    if not are_token_ids(ids, vocab_size or _INT32_MAX):
        raise _bad_token_id(ids, name, vocab_size or _INT32_MAX)
    return ids


def _bad_token_id(ids: Sequence[object], name: str, bound: int) -> RequestRejected:
    for value in ids:
        if type(value) is not int:
            return rejected(f"{name} must contain only integers, got {type(value).__name__}.", name)
        if not 0 <= value < bound:
            return rejected(
                f"token_id(s) [{shown(value)}] in {name} contain out-of-vocab token ids. "
                f"Vocabulary size: {bound}",
                name,
            )
    return rejected(f"{name} must be a list of token ids.", name)


def check_count(values: Sequence[object] | Mapping[Any, Any], name: str, most: int | None) -> None:
    if most is not None and len(values) > most:
        raise rejected(f"{name} has {len(values)} entries, at most {most} are allowed.", name)


def check_plain(value: object, name: str, depth: int = MAX_DEPTH) -> None:
    """Check free-form data: what JSON can say, integers of 64 bits, bounded depth."""
    kind = type(value)
    if kind is bool or value is None:
        return
    if kind is str:
        check_text(value, name)
    elif isinstance(value, int) and kind is int:
        if not INT64_MIN <= value <= UINT64_MAX:
            raise rejected(f"{name} holds an integer of more than 64 bits.", name)
    elif isinstance(value, float) and kind is float:
        if not math.isfinite(value):
            raise rejected(f"{name} holds {value}, which is no number.", name)
    elif depth == 0:
        raise rejected(f"{name} is nested too deeply: at most {MAX_DEPTH} levels.", name)
    elif isinstance(value, dict) and kind is dict:
        for key, item in value.items():
            check_text(key, f"{name} key")
            check_plain(item, name, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            check_plain(item, name, depth - 1)
    else:
        raise rejected(f"{name} holds a {kind.__name__}, which cannot be sent.", name)


def check_plain_map(value: object, name: str) -> None:
    """Check for a free-form map."""
    if type(value) is not dict:
        raise wrong_type(name, "a map", value)
    check_plain(value, name)
