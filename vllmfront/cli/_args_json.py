"""``--args-json``: the supervisor's options, as one JSON object, to sections of a configuration."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import attrs

from vllmfront.cli import _args_json_keys as keys
from vllmfront.cli._args_json_engine import ENGINE_KEYS
from vllmfront.cli._errors import UsageError
from vllmfront.cli._json_types import kind

_NAME = "--args-json"

_REDACTED = "***"


@attrs.frozen(kw_only=True)
class ArgsJson:
    """What an object of arguments says."""

    sections: Mapping[str, Mapping[str, Any]]
    """Values by section and field of the configuration; what is absent keeps its default."""

    no_effect: Sequence[str]
    unknown: Sequence[str]
    redacted: str = attrs.field(repr=False)
    """All of it, for a log."""


def read_args_json(text: str) -> ArgsJson:
    """Read what the supervisor hands down.

    Raises:
        UsageError: It is no object, a value has another type than it should, the model is missing,
            or something is asked for that is not served; no value is repeated.
    """
    given = _parse(text)
    if "model_tag" not in given:
        raise UsageError(f"{_NAME} names no model: model_tag is missing")
    _refuse(given)
    sections: dict[str, dict[str, Any]] = {}
    for name, key in keys.USED.items():
        if name not in given:
            continue
        value = key.convert(_read(name, key, given[name]))
        if key.target is not None and value is not None:
            section, _, field = key.target.rpartition(".")
            sections.setdefault(section, {})[field] = value
    known = {*keys.USED, *keys.WITHOUT_FEATURE, *keys.REFUSED, *keys.NO_EFFECT, *ENGINE_KEYS}
    return ArgsJson(
        sections=sections,
        no_effect=_sorted(name for name in given if name in keys.NO_EFFECT),
        unknown=_sorted(name for name in given if name not in known),
        redacted=_redact(given),
    )


def _parse(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        # Not with the document, which holds secrets.
        raise UsageError(f"{_NAME} is no JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise UsageError(f"{_NAME} is no JSON: {error}") from None
    except RecursionError:
        raise UsageError(f"{_NAME} is no JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise UsageError(f"{_NAME}: expected an object, got {kind(value)}")
    return value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} is given twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _refuse(given: Mapping[str, Any]) -> None:
    """Say all that is asked for and not served, together.

    Raises:
        UsageError: There is something.
    """
    refused = {
        name: "this frontend does not implement it"
        for name in keys.REFUSED
        if given.get(name) is not None
    }
    for name, (key, feature) in keys.WITHOUT_FEATURE.items():
        if name in given and key.convert(_read(name, key, given[name])):
            refused[name] = f"{feature} is not part of this build yet"
    if refused:
        lines = "\n".join(f"- {name}: {reason}" for name, reason in sorted(refused.items()))
        raise UsageError(
            f"{_NAME} asks for what is not served:\n{lines}\n\nRemove these options of "
            "`vllm serve`, or let its own server run: VLLM_USE_RUST_FRONTEND=0."
        )


def _read(name: str, key: keys.Key, value: Any) -> Any:
    try:
        return key.read(value)
    except ValueError as error:
        raise UsageError(f"{_NAME}: {name}: {error}") from None


def _redact(given: Mapping[str, Any]) -> str:
    known = {*keys.USED, *keys.NO_EFFECT, *ENGINE_KEYS}
    # What we do not know may be a secret.
    shown = {
        name: value if name in known and name not in keys.SECRET else _REDACTED
        for name, value in given.items()
    }
    return json.dumps(shown, sort_keys=True)


def _sorted(names: Iterable[str]) -> Sequence[str]:
    return tuple(sorted(names))
