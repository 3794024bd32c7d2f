"""Constraints on the generated text: whatever can be told without compiling them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from vllmfront.engine._request import STRUCTURED_BACKENDS, StructuredOutputs
from vllmfront.engine.guard._checks import (
    MAX_DEPTH,
    check_boolean,
    check_list,
    check_plain,
    check_plain_map,
    check_text,
    rejected,
    wrong_type,
)

# A structural tag wraps its schemas in this many levels more.
_TAG_WRAPPER_DEPTH = 16


def check_structured(value: object) -> None:
    """Check a constraint.

    Raises:
        RequestRejected: It is none, more than one, empty or not JSON where JSON belongs.
    """
    if not isinstance(value, StructuredOutputs):
        raise wrong_type("structured_outputs", "StructuredOutputs", value)
    chosen = [name for name in _CONSTRAINTS if getattr(value, name) is not None]
    if len(chosen) > 1:
        raise rejected(
            "You can only use one kind of structured outputs constraint but multiple are "
            f"specified: {', '.join(chosen)}",
            "structured_outputs",
        )
    if not chosen:
        raise rejected(
            "You must use one kind of structured outputs constraint but none are specified",
            "structured_outputs",
        )
    _CONSTRAINTS[chosen[0]](getattr(value, chosen[0]))
    check_boolean(value.disable_any_whitespace, "structured_outputs.disable_any_whitespace")
    check_boolean(
        value.disable_additional_properties, "structured_outputs.disable_additional_properties"
    )
    if value.whitespace_pattern is not None:
        check_text(value.whitespace_pattern, "structured_outputs.whitespace_pattern")
    if check_text(value.backend, "structured_outputs") not in STRUCTURED_BACKENDS:
        raise rejected(
            f"structured_outputs backend must be one of {', '.join(sorted(STRUCTURED_BACKENDS))}, "
            f"got {value.backend!r}.",
            "structured_outputs",
        )


def _json(value: Any) -> None:
    name = "structured_outputs.json"
    if type(value) is str:
        schema = _parse(value, name, MAX_DEPTH)
        if type(schema) is not dict and type(schema) is not bool:
            raise wrong_type(name, "a JSON schema", schema)
    else:
        check_plain_map(value, name)


def _parse(value: str, name: str, depth: int) -> Any:
    if check_text(value, name).strip() == "":
        raise rejected(f"{name} cannot be an empty string", name)
    try:
        document = json.loads(value)
    except RecursionError:
        raise rejected(f"{name} is nested too deeply.", name) from None
    except ValueError as error:
        raise rejected(f"{name} is not valid JSON: {error}", name) from None
    check_plain(document, name, depth)
    return document


def _regex(value: Any) -> None:
    name = "structured_outputs.regex"
    if "\x00" in check_text(value, name):
        raise rejected(f"{name} must not contain a NUL character ('\\x00')", name)


def _choice(value: Any) -> None:
    name = "structured_outputs.choice"
    if not check_list(value, name):
        raise rejected(f"{name} cannot be an empty list", name)
    for choice in value:
        check_text(choice, name)


def _grammar(value: Any) -> None:
    name = "structured_outputs.grammar"
    if check_text(value, name).strip() == "":
        raise rejected(f"{name} cannot be an empty string", name)


def _json_object(value: Any) -> None:
    name = "structured_outputs.json_object"
    if value is not True:
        raise rejected(f"{name} must be True if set", name)


def _structural_tag(value: Any) -> None:
    name = "structured_outputs.structural_tag"
    tag = _parse(value, name, MAX_DEPTH + _TAG_WRAPPER_DEPTH)
    if type(tag) is not dict:
        raise wrong_type(name, "a JSON object", tag)


_CONSTRAINTS: Mapping[str, Callable[[Any], None]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}
