"""Structured outputs: from what clients write to the one constraint that the engine gets.

Only cheap checks are made here, but all of them before the engine sees anything: exactly one
constraint, of the right type, not empty, JSON where JSON is meant.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from vllmfront.engine import StructuredOutputs
from vllmfront.errors import MalformedRequest, RequestRejected
from vllmfront.text._grammar import regex_fault, schema_fault
from vllmfront.text._request import SamplingLimits, SamplingRequest

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_FLAGS = ("disable_any_whitespace", "disable_additional_properties")


def check_constraints(request: SamplingRequest) -> None:
    """Check what a request asks of the form of its answer.

    Raises:
        RequestRejected: It is contradictory, malformed or empty.
    """
    resolve_constraints(request, SamplingLimits())


def resolve_constraints(
    request: SamplingRequest, limits: SamplingLimits
) -> StructuredOutputs | None:
    """Return the constraint of a request, or None where it has none.

    Raises:
        RequestRejected: As ``check_constraints``.
    """
    wanted = request.structured_outputs
    shape = request.response_format
    if wanted is None and shape is None:
        return None
    fields = _from_response_format(shape) if shape is not None else {}
    if wanted is not None:
        if fields:
            raise RequestRejected(
                "You can only use one kind of structured outputs constraint but multiple are"
                " specified."
            )
        fields = _from_structured_outputs(wanted)
    if not fields:
        return None
    return StructuredOutputs(backend=limits.structured_backend, **fields)


def _from_structured_outputs(wanted: Any) -> dict[str, Any]:
    if not isinstance(wanted, Mapping):
        raise _invalid("must be an object")
    if wanted.get("json_object") is False:
        raise _invalid(
            "invalid structured outputs params: structured_outputs.json_object must be true if"
            " set; omit structured_outputs to disable structured outputs"
        )
    kinds = [kind for kind in _KINDS if wanted.get(kind) is not None]
    if not kinds:
        raise _invalid("invalid structured outputs params: missing structured output constraint")
    if len(kinds) > 1:
        raise _invalid(
            "invalid structured outputs params: multiple structured output constraints specified:"
            f" {', '.join(kinds)}"
        )
    kind = kinds[0]
    fields = {kind: _constraint(kind, wanted[kind])}
    for flag in _FLAGS:
        value = wanted.get(flag)
        if value is not None:
            fields[flag] = _typed(flag, value, bool, "a boolean")
    pattern = wanted.get("whitespace_pattern")
    if pattern is not None:
        fields["whitespace_pattern"] = _typed("whitespace_pattern", pattern, str, "a string")
    return fields


def _constraint(kind: str, value: Any) -> Any:
    if kind == "json":
        return _json_schema(value)
    if kind == "json_object":
        return _typed(kind, value, bool, "a boolean")
    if kind == "choice":
        _typed(kind, value, list, "a list of strings")
        if not value:
            raise _invalid(
                "invalid structured outputs params: structured_outputs.choice cannot be empty"
            )
        return [_typed("choice[]", item, str, "a string") for item in value]
    _typed(kind, value, str, "a string")
    if kind != "regex" and not value.strip():
        raise _empty(kind)
    if kind == "regex" and (fault := regex_fault(value)) is not None:
        raise _invalid(f"invalid structured outputs params: Invalid regex: {fault}")
    if kind == "structural_tag" and _parse(value) is _BROKEN:
        raise _invalid("invalid structured outputs params: Invalid structural tag specification.")
    return value


def _json_schema(value: Any) -> str | Mapping[str, Any]:
    """A schema is an object, or JSON text; the engine takes nothing else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    schema = value
    if isinstance(value, str):
        if not value.strip():
            raise _empty("json")
        schema = _parse(value)
    if not isinstance(schema, Mapping | bool):
        raise _invalid("invalid structured outputs params: Invalid JSON grammar specification.")
    if (fault := schema_fault(schema)) is not None:
        raise _invalid(f"invalid structured outputs params: Invalid JSON schema: {fault}")
    result: str | Mapping[str, Any] = value
    return result


_BROKEN = object()


def _parse(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _BROKEN


def _typed(name: str, value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise _invalid(f"{name}: expected {expected}")
    return value


def _empty(kind: str) -> RequestRejected:
    return _invalid(
        f"invalid structured outputs params: structured_outputs.{kind} cannot be an empty string"
    )


def _invalid(what: str) -> RequestRejected:
    return RequestRejected(f"invalid structured_outputs: {what}", param="structured_outputs")


def _from_response_format(shape: Mapping[str, Any]) -> dict[str, Any]:
    if "type" not in shape:
        raise _malformed("missing field `type`")
    kind = shape["type"]
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        return {"json": _named_schema(shape.get("json_schema"))}
    if kind == "structural_tag":
        return {"structural_tag": _structural_tag(shape)}
    raise MalformedRequest.misfit(
        f"unknown variant `{kind}`, expected one of `text`, `json_object`, `json_schema`,"
        " `structural_tag`",
        "response_format.type",
    )


def _named_schema(named: Any) -> str | Mapping[str, Any]:
    if not isinstance(named, Mapping):
        raise _malformed("missing field `json_schema`")
    if not isinstance(named.get("name"), str):
        raise _malformed("missing field `name`")
    if not named["name"]:
        raise _malformed("JSON schema name cannot be empty")
    schema = named.get("schema")
    if schema is None:
        raise _malformed("missing field `schema`")
    try:
        return _json_schema(schema)
    except RequestRejected as error:
        raise RequestRejected(error.message, param="response_format") from error


def _structural_tag(shape: Mapping[str, Any]) -> str:
    members = {key: shape[key] for key in ("format", "structures", "triggers") if key in shape}
    if "format" not in members and not {"structures", "triggers"} <= members.keys():
        raise _malformed("a structural_tag needs `format`, or `structures` and `triggers`")
    return msgspec.json.encode({"type": "structural_tag", **members}).decode()


def _malformed(what: str) -> MalformedRequest:
    return MalformedRequest.misfit(what, "response_format")
