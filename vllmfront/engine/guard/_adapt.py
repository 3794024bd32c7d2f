"""Differences between engine versions that a rewritten request hides."""

from msgspec.structs import replace

from vllmfront.engine._release import release_of
from vllmfront.engine._request import EngineRequest, StructuredOutputs

_FIRST_WITH_CHOICE = (0, 33)


def adapt_request(request: EngineRequest, vllm_version: str | None) -> EngineRequest:
    """Return *request* in a form that an engine of *vllm_version* can carry out.

    The request has passed the guard. Versions that cannot be read count as the newest.
    """
    sampling = request.sampling
    if sampling is None or sampling.structured_outputs is None:
        return request
    constraint = sampling.structured_outputs
    if constraint.choice is None or constraint.backend != "xgrammar":
        return request
    if release_of(vllm_version) >= _FIRST_WITH_CHOICE:
        return request
    # Before 0.33 the engine fails a request that brings xgrammar a list of choices.
    grammar = _as_grammar(constraint)
    return replace(request, sampling=replace(sampling, structured_outputs=grammar))


_ESCAPES = str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}
)


def _as_grammar(constraint: StructuredOutputs) -> StructuredOutputs:
    choices = constraint.choice or ()
    alternatives = " | ".join(f'"{choice.translate(_ESCAPES)}"' for choice in choices)
    return replace(constraint, choice=None, grammar=f"root ::= {alternatives}")
