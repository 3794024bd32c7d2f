"""Readers of single option values: text in, value out, ``ValueError`` with a reason for people."""

import decimal
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MULTIPLIERS = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
"""What letters after a number stand for, as vLLM reads them."""


_MOST_WORKERS = 64
"""Each engine has connections to each of them."""


def worker_count(word: str) -> int | None:
    """Read how many processes serve; None: ``auto``."""
    return None if word == "auto" else integer(1, _MOST_WORKERS)(word)


def integer(low: int, high: int) -> Callable[[str], int]:
    """Read a whole number from *low* to *high*."""

    def parse(text: str) -> int:
        # int() alone takes blanks, underscores and digits of other scripts, too.
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError("not a whole number")
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"{value} is not in {low}..={high}")
        return value

    return parse


def count(text: str) -> int:
    """Read a whole number; ``32k`` and ``25.6k`` are short for decimal ones, ``32K`` for binary."""
    if not (short := re.fullmatch(r"([0-9]{1,15})(\.[0-9]{1,9})?([kmgtKMGT])", text)):
        return integer(0, 2**63 - 1)(text)
    if short[2] and short[3].isupper():
        raise ValueError(f"{short[3]} counts in powers of two and takes no fraction")
    number = decimal.Decimal(short[1] + (short[2] or ""))
    return integer(0, 2**63 - 1)(str(int(number * _MULTIPLIERS[short[3]])))


def seconds(text: str) -> float:
    """Read a span of time, zero included."""
    value = _number_of_seconds(text)
    if value < 0:
        raise ValueError("must be zero or a positive number of seconds")
    return value


def positive_seconds(text: str) -> float:
    """Read a span of time that has to pass."""
    value = _number_of_seconds(text)
    if value <= 0:
        raise ValueError("must be a positive number of seconds")
    return value


def _number_of_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number of seconds") from None
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


def non_empty(text: str) -> str:
    """Read any text but none."""
    if not text:
        raise ValueError("must not be empty")
    return text


def admin_address(text: str) -> str:
    """Read ``HOST:PORT``, or a path, which has a slash in it."""
    host, colon, port = text.rpartition(":")
    if "/" not in text and not (host and colon and re.fullmatch(r"[0-9]{1,5}", port)):
        raise ValueError("expected HOST:PORT, or a path with a slash in it")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """Read one of a few words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of: {', '.join(choices)}")
        return text

    return parse


def json_object(text: str) -> Mapping[str, Any]:
    """Read a JSON object."""
    value = _json(text)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - a bad value, not a bug
    return value


def string_list(text: str) -> Sequence[str]:
    """Read a JSON list of strings."""
    value = _json(text)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected a JSON list of strings")
    return tuple(value)


def histogram_buckets(text: str) -> Mapping[str, Sequence[float]]:
    """Read upper bounds by family: strictly increasing, positive and finite."""
    return checked_buckets(json_object(text))


def checked_buckets(families: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """Check upper bounds by family, as ``histogram_buckets`` does."""
    # Late, because a usage error is to come before the engine's libraries are loaded.
    from vllmfront.engine.metrics import HISTOGRAM_FAMILIES

    for family, bounds in families.items():
        if family not in HISTOGRAM_FAMILIES:
            raise ValueError(
                f"unknown family `{family}`, expected one of: {', '.join(HISTOGRAM_FAMILIES)}"
            )
        if not isinstance(bounds, list) or not all(map(_is_bound, bounds)) or not bounds:
            raise ValueError(f"{family}: expected a list of positive, finite numbers")
        if any(low >= high for low, high in itertools.pairwise(bounds)):
            raise ValueError(f"{family}: bounds {bounds} must be strictly increasing")
    return {family: tuple(map(float, bounds)) for family, bounds in families.items()}


def item_limits(text: str) -> Mapping[str, Any]:
    """Read items allowed per modality: a count, or an object with an optional ``count``."""
    return checked_item_limits(json_object(text))


def checked_item_limits(limits: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check items allowed per modality, as ``item_limits`` does."""
    for modality, limit in limits.items():
        count = limit.get("count", 0) if isinstance(limit, dict) else limit
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(
                f"{modality}: expected an item count, or an object with an optional `count`"
            )
    return limits


def adapter(text: str) -> Mapping[str, Any]:
    """Read ``name=path``, or a JSON object with ``name``, ``path`` and what else is known of it."""
    if text.lstrip().startswith("{"):
        return checked_adapter(json_object(text))
    name, equals, path = text.partition("=")
    if not equals:
        raise ValueError("expected name=path, or a JSON object")
    return checked_adapter({"name": name, "path": path})


def checked_adapter(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check what is said about an adapter, as ``adapter`` does; unknown members are left out."""
    for name in ("name", "path"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise ValueError(f"{name}: expected a string that is not empty")
    base, is_3d = fields.get("base_model_name"), fields.get("is_3d_lora_weight", False)
    if base is not None and not isinstance(base, str):
        raise ValueError("base_model_name: expected a string")
    if not isinstance(is_3d, bool):
        raise ValueError("is_3d_lora_weight: expected true or false")  # noqa: TRY004 - a bad value
    return {
        "name": fields["name"],
        "path": fields["path"],
        "base_model_name": base,
        "is_3d_lora_weight": is_3d,
    }


def adapters(given: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
    """Make adapters of what was said about them; each name counts once."""
    from vllmfront.lifecycles import AdapterConfig  # late, as above

    return tuple(AdapterConfig(**fields) for fields in given)


def structured_outputs(text: str) -> Mapping[str, Any]:
    """Read the engine's structured-outputs settings, of which ``backend`` is ours as well."""
    return checked_structured_outputs(json_object(text))


def checked_structured_outputs(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the engine's structured-outputs settings, as ``structured_outputs`` does."""
    from vllmfront.engine import STRUCTURED_BACKENDS  # late, as above

    backends = ("auto", *STRUCTURED_BACKENDS)
    if config.get("backend", "auto") not in backends:
        raise ValueError(f"unknown backend, expected one of: {', '.join(backends)}")
    return config


def generation_config(text: str) -> str:
    """Read where default sampling values come from; paths are not served."""
    if text not in {"auto", "vllm"}:
        raise ValueError(
            f"generation config source `{text}` is not implemented yet "
            "(expected one of: auto, vllm)"
        )
    return text


def _is_bound(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as exc:
        raise ValueError(f"invalid JSON: {exc}") from None
    except RecursionError:
        raise ValueError("invalid JSON: nested too deeply") from None
