import pytest

from vllmfront.engine._request import EngineRequest, SamplingParams, StructuredOutputs
from vllmfront.engine.guard import adapt_request


def request_with(constraint: StructuredOutputs | None) -> EngineRequest:
    sampling = SamplingParams(structured_outputs=constraint)
    return EngineRequest(request_id="r", prompt_token_ids=[1], sampling=sampling)


def constraint_of(request: EngineRequest) -> StructuredOutputs:
    assert request.sampling is not None
    assert request.sampling.structured_outputs is not None
    return request.sampling.structured_outputs


CHOICE = request_with(StructuredOutputs(choice=["a b", 'q"\\', "line\n\r\t", "ü"]))


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1.dev3+cpu", "0.9.2"])
def test_choices_become_a_grammar_for_engines_that_cannot_take_them(version: str) -> None:
    constraint = constraint_of(adapt_request(CHOICE, version))

    assert constraint.choice is None
    assert constraint.grammar == r'root ::= "a b" | "q\"\\" | "line\n\r\t" | "ü"'
    assert constraint.backend == "xgrammar"


@pytest.mark.parametrize("version", ["0.33.0", "0.40.0rc1", "1.0.0", "dev", "", None, "0", "0.x"])
def test_choices_stay_for_newer_and_unknown_engines(version: str | None) -> None:
    assert adapt_request(CHOICE, version) is CHOICE


@pytest.mark.parametrize(
    "request_",
    [
        request_with(None),
        request_with(StructuredOutputs(regex="a|b")),
        request_with(StructuredOutputs(choice=["a"], backend="guidance")),
        EngineRequest(request_id="r", prompt_token_ids=[1]),
    ],
)
def test_everything_else_stays(request_: EngineRequest) -> None:
    assert adapt_request(request_, "0.32.0") is request_
