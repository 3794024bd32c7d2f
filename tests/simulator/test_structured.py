from vllmfront.engine import StructuredOutputs
from vllmfront.simulator._structured import constraint_fault


def test_a_constraint_that_cannot_be_parsed_costs_its_request_alone() -> None:
    deep = StructuredOutputs(backend="xgrammar", regex="(" * 50_000 + ")" * 50_000)
    wide = StructuredOutputs(backend="xgrammar", regex="a{99999999999999999999}")

    assert "Invalid structured outputs" in str(constraint_fault(deep))
    assert "Invalid structured outputs" in str(constraint_fault(wide))
