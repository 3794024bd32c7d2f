"""Structured outputs: what the peer refuses, and what it would have let kill the engine."""

from typing import Any

import pytest

from tests.text._requests import chat
from vllmfront.engine import StructuredOutputs
from vllmfront.errors import MalformedRequest, RequestRejected
from vllmfront.text import SamplingLimits, resolve_constraints

LIMITS = SamplingLimits()
PARAMS = "invalid structured_outputs: invalid structured outputs params: "


def resolve(limits: SamplingLimits = LIMITS, **fields: Any) -> StructuredOutputs | None:
    return resolve_constraints(chat(**fields), limits)


@pytest.mark.parametrize(
    "wanted",
    [
        {"json": {}},
        {"json": {"type": "object", "properties": {"type": {"type": "string"}}}},
        {"json": '{"type": ["string", "null"]}'},
        {"regex": "a+"},
        {"regex": ""},
        {"regex": r"[^]\p{L}(?<n>x)\cA"},
        {"choice": ["a", ""]},
        {"grammar": "root ::= x"},
        {"json_object": True},
        {"structural_tag": "{}"},
    ],
)
def test_what_is_passed_on_as_it_is(wanted: dict[str, Any]) -> None:
    assert resolve(structured_outputs=wanted) == StructuredOutputs(**wanted)


def test_options_are_passed_on_and_the_backend_is_ours() -> None:
    wanted: dict[str, Any] = {
        "regex": "a",
        "json": None,
        "disable_any_whitespace": True,
        "disable_additional_properties": True,
        "whitespace_pattern": "x",
    }

    resolved = resolve(
        SamplingLimits(structured_backend="guidance"),
        structured_outputs={**wanted, "backend": "outlines", "unknown": 1},
    )

    assert resolved == StructuredOutputs(**wanted, backend="guidance")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "missing structured output constraint"),
        ({"json": None}, "missing structured output constraint"),
        ({"disable_any_whitespace": True}, "missing structured output constraint"),
        (
            {"regex": "a", "json": {}},
            "multiple structured output constraints specified: json, regex",
        ),
        (
            {"regex": "a", "json_object": False},
            (
                "structured_outputs.json_object must be true if set;"
                " omit structured_outputs to disable structured outputs"
            ),
        ),
        ({"json": ""}, "structured_outputs.json cannot be an empty string"),
        ({"grammar": ""}, "structured_outputs.grammar cannot be an empty string"),
        ({"structural_tag": ""}, "structured_outputs.structural_tag cannot be an empty string"),
        ({"choice": []}, "structured_outputs.choice cannot be empty"),
        ({"json": "{bad"}, "Invalid JSON grammar specification."),
        ({"structural_tag": "{bad"}, "Invalid structural tag specification."),
        # From here on stricter than the peer, on purpose: the engine cannot take these.
        ({"json": "[1]"}, "Invalid JSON grammar specification."),
        ({"json": 5}, "Invalid JSON grammar specification."),
        ({"json": [{}]}, "Invalid JSON grammar specification."),
        ({"json": "[" * 10_000}, "Invalid JSON grammar specification."),
        ({"json": {"type": "nope"}}, "Invalid JSON schema: unknown type 'nope'"),
        ({"json": '{"items": {"type": 7}}'}, "Invalid JSON schema: unknown type 7"),
        ({"regex": "("}, "Invalid regex: missing ), unterminated subpattern at position 0"),
        ({"regex": "a)"}, "Invalid regex: unbalanced parenthesis at position 1"),
        ({"regex": "[a"}, "Invalid regex: unterminated character set at position 0"),
        ({"regex": "*a"}, "Invalid regex: nothing to repeat at position 0"),
    ],
)
def test_what_is_refused(wanted: Any, message: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        resolve(structured_outputs=wanted)

    assert (caught.value.message, caught.value.param) == (PARAMS + message, "structured_outputs")


@pytest.mark.parametrize(
    "wanted",
    [
        5,
        "x",
        [],
        {"structural_tag": {"type": "x"}},
        {"regex": 1},
        {"choice": "ab"},
        {"choice": [1]},
        {"json_object": 1},
        {"regex": "a", "whitespace_pattern": 1},
        {"regex": "a", "disable_any_whitespace": "yes"},
    ],
)
def test_wrong_types_are_refused(wanted: Any) -> None:
    with pytest.raises(RequestRejected) as caught:
        resolve(structured_outputs=wanted)

    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutputs(json_object=True)),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
            StructuredOutputs(json={"type": "object"}),
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": True}},
            StructuredOutputs(json="true"),
        ),
        (
            {"type": "structural_tag", "format": {"type": "x"}, "extra": 1},
            StructuredOutputs(structural_tag='{"type":"structural_tag","format":{"type":"x"}}'),
        ),
        (
            {"type": "structural_tag", "structures": [], "triggers": ["<a"]},
            StructuredOutputs(
                structural_tag='{"type":"structural_tag","structures":[],"triggers":["<a"]}'
            ),
        ),
    ],
)
def test_response_formats(shape: dict[str, Any], expected: StructuredOutputs | None) -> None:
    assert resolve(response_format=shape) == expected


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"type": "nope"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "structural_tag"},
        {"type": "structural_tag", "structures": []},
    ],
)
def test_malformed_response_formats(shape: dict[str, Any]) -> None:
    with pytest.raises(MalformedRequest, match="response_format"):
        resolve(response_format=shape)


def test_a_bad_schema_in_a_response_format_names_the_field() -> None:
    with pytest.raises(RequestRejected) as caught:
        resolve(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"anyOf": [{"type": "strin"}]}},
            }
        )

    assert caught.value.param == "response_format"
    assert "strin" in caught.value.message


def test_one_constraint_of_either_kind() -> None:
    regex = {"regex": "a"}

    assert resolve(response_format={"type": "text"}, structured_outputs=regex) is not None
    with pytest.raises(RequestRejected, match="only use one kind"):
        resolve(response_format={"type": "json_object"}, structured_outputs=regex)
    assert resolve() is None
