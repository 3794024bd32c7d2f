import threading

import pytest
import trio
import trio.testing

from vllmfront.engine import StructuredOutputs
from vllmfront.errors import RequestRejected
from vllmfront.text import GrammarChecker
from vllmfront.text._grammar import _compile_fault, grammar_fault, regex_fault, schema_fault

PARAM = "structured_outputs"


async def test_without_the_library_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with trio.testing.assert_no_checkpoints():
        await GrammarChecker().check(StructuredOutputs(regex="(", backend="guidance"), param=PARAM)


@pytest.mark.parametrize(
    "constraint",
    [
        StructuredOutputs(regex="("),
        StructuredOutputs(grammar="x"),
        StructuredOutputs(json_object=True, backend="guidance"),
        StructuredOutputs(choice=["a"], backend="guidance"),
        StructuredOutputs(structural_tag="{}", backend="guidance"),
    ],
)
async def test_others_judge_for_themselves(constraint: StructuredOutputs) -> None:
    with trio.testing.assert_no_checkpoints():
        await GrammarChecker().check(constraint, param=PARAM)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (StructuredOutputs(regex="a+", backend="guidance"), {"regex": "a+("}),
        (StructuredOutputs(json={"type": "object"}, backend="guidance"), {"json": {"not": {}}}),
        (StructuredOutputs(json="{}", backend="guidance"), {"json": '{"type": "nope"}'}),
        (StructuredOutputs(grammar="start: /a/", backend="guidance"), {"grammar": "x"}),
        (StructuredOutputs(grammar='root ::= "a"', backend="guidance"), {"grammar": "root ::= ("}),
    ],
)
async def test_what_the_library_refuses(good: StructuredOutputs, bad: dict[str, str]) -> None:
    pytest.importorskip("llguidance")
    checker = GrammarChecker()

    with trio.testing.assert_checkpoints():
        await checker.check(good, param=PARAM)
    with pytest.raises(RequestRejected, match="Grammar error") as caught:
        await checker.check(StructuredOutputs(**bad, backend="guidance"), param=PARAM)  # type: ignore[arg-type]  # any field

    assert caught.value.param == PARAM


async def test_what_takes_too_long_is_left_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    release = threading.Event()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    monkeypatch.setattr("vllmfront.text._grammar.grammar_fault", lambda _: release.wait(10))
    checker = GrammarChecker(seconds=2.0)
    slow = StructuredOutputs(grammar="a", backend="guidance")
    started = autojump_clock.current_time()

    try:
        await checker.check(slow, param=PARAM)
        # The lost thread holds up nobody for longer.
        await checker.check(slow, param=PARAM)
    finally:
        release.set()

    assert autojump_clock.current_time() - started == 4.0


def test_what_is_too_long_is_left_to_the_engine_and_not_kept() -> None:
    kept = _compile_fault.cache_info().currsize

    assert grammar_fault(StructuredOutputs(grammar="x" * 100_001, backend="guidance")) is None
    assert _compile_fault.cache_info().currsize == kept


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
