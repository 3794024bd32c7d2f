import pytest
import trio.testing

from vllmfront.engine import StructuredOutputs
from vllmfront.errors import RequestRejected
from vllmfront.text import can_check_grammar, check_grammar
from vllmfront.text._grammar import regex_fault, schema_fault


async def test_without_the_library_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    constraint = StructuredOutputs(regex="(", backend="guidance")

    assert not can_check_grammar(constraint)
    with trio.testing.assert_no_checkpoints():
        await check_grammar(constraint)


async def test_other_backends_judge_for_themselves() -> None:
    pytest.importorskip("llguidance")

    await check_grammar(StructuredOutputs(regex="("))
    await check_grammar(None)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (StructuredOutputs(regex="a+", backend="guidance"), {"regex": "a+("}),
        (StructuredOutputs(json={"type": "object"}, backend="guidance"), {"json": {"not": {}}}),
        (StructuredOutputs(json="{}", backend="guidance"), {"json": '{"type": "nope"}'}),
        (StructuredOutputs(grammar="start: /a/", backend="guidance"), {"grammar": "x"}),
    ],
)
async def test_what_the_library_refuses(good: StructuredOutputs, bad: dict[str, str]) -> None:
    pytest.importorskip("llguidance")

    await check_grammar(good)
    with pytest.raises(RequestRejected, match="Grammar error") as caught:
        await check_grammar(StructuredOutputs(**bad, backend="guidance"))  # type: ignore[arg-type]  # any field

    assert caught.value.param == "structured_outputs"


async def test_a_long_grammar_is_compiled_in_a_thread() -> None:
    pytest.importorskip("llguidance")
    properties = {f"p{i}": {"type": "string"} for i in range(500)}

    with trio.testing.assert_checkpoints():
        await check_grammar(
            StructuredOutputs(json={"type": "object", "properties": properties}, backend="guidance")
        )


async def test_constraints_that_cannot_be_wrong_pass() -> None:
    pytest.importorskip("llguidance")

    await check_grammar(StructuredOutputs(json_object=True, backend="guidance"))
    await check_grammar(StructuredOutputs(choice=["a"], backend="guidance"))


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "[[a]]",
        "[]",
        "[^]x",
        r"\u{1F600}",
        r"\p{Lu}+",
        "(?<name>x)",
        "a" * 10_000 + "(",
        "(" * 4000 + ")" * 4000,
        "a{99999999999999999999}",
    ],
)
def test_dialects_are_given_the_benefit_of_the_doubt(pattern: str) -> None:
    assert regex_fault(pattern) is None


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"enum": [{"type": "nope"}], "const": {"type": "nope"}, "default": {"type": "nope"}},
        {"properties": {"type": {"type": "array", "items": True}}},
        {"anyOf": 5, "properties": 7, "items": [{"type": "nope"}]},
    ],
)
def test_schemas_without_unknown_types(schema: object) -> None:
    assert schema_fault(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"type": ["string", "nope"]},
        {"type": {"a": 1}},
        {"$defs": {"a": {"allOf": [{"not": {"type": "nope"}}]}}},
    ],
)
def test_schemas_with_unknown_types(schema: object) -> None:
    assert "unknown type" in (schema_fault(schema) or "")


def test_a_schema_without_an_end_is_a_fault() -> None:
    schema: dict[str, object] = {}
    for _ in range(100_000):
        schema = {"items": schema}

    assert schema_fault(schema) == "nested too deeply"
    while schema:  # taken apart by hand: freeing it in one go would overflow the stack
        schema = schema.pop("items")  # type: ignore[assignment]  # always a dict
