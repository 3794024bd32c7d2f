"""Whatever a client asks: it is refused in words, or the engine can take what becomes of it."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.text._requests import MAX_MODEL_LEN, VOCAB_SIZE, chat, completion, lower
from vllmfront.engine import EngineRequest, GuardLimits, RepetitionDetection
from vllmfront.engine.guard import check_request as guard
from vllmfront.errors import RequestRejected
from vllmfront.text import SamplingLimits

SMALL = st.integers(-3, 25)
INTEGERS = SMALL | st.integers(-(1 << 70), 1 << 70)
# Of numbers too small for a normal 32-bit float the guard's own tests know.
NUMBERS = (st.floats(-3, 3) | st.floats(allow_nan=True) | SMALL).map(
    lambda number: 0.0 if abs(number) < 1e-30 else number
)
IDS = st.lists(st.integers(-2, VOCAB_SIZE + 2) | INTEGERS, max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | SMALL | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
CONSTRAINTS = st.fixed_dictionaries(
    {},
    optional={
        "json": JSON,
        "regex": st.text(st.sampled_from("ab()[]*\\"), max_size=6) | JSON,
        "choice": st.lists(st.text(max_size=3), max_size=3) | JSON,
        "grammar": st.text(max_size=5),
        "json_object": st.booleans() | JSON,
        "structural_tag": JSON | st.just("{}"),
        "whitespace_pattern": JSON,
        "disable_any_whitespace": JSON,
    },
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "echo": st.booleans(),
    "max_tokens": INTEGERS,
    "max_completion_tokens": INTEGERS,
    "min_tokens": INTEGERS,
    "n": INTEGERS,
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "top_k": INTEGERS,
    "min_p": NUMBERS,
    "frequency_penalty": NUMBERS,
    "presence_penalty": NUMBERS,
    "repetition_penalty": NUMBERS,
    "seed": INTEGERS,
    "logit_bias": st.dictionaries(st.text(st.sampled_from("0123+-x"), max_size=4), NUMBERS),
    "allowed_token_ids": IDS,
    "stop_token_ids": IDS,
    "logprob_token_ids": IDS,
    "bad_words": st.lists(st.text(max_size=4), max_size=3),
    "repetition_detection": st.builds(
        RepetitionDetection,
        max_pattern_size=st.integers(0, 9),
        min_pattern_size=st.integers(0, 9),
        min_count=st.integers(0, 9),
    ),
    "thinking_token_budget": SMALL,
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=5),
    "ignore_eos": st.booleans(),
    "logprobs": st.booleans() | SMALL,
    "top_logprobs": SMALL,
    "prompt_logprobs": SMALL,
    "structured_outputs": CONSTRAINTS | JSON,
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "json_schema", "structural_tag", "x"])},
        optional={
            "json_schema": st.fixed_dictionaries({}, optional={"name": JSON, "schema": JSON})
            | JSON,
            "format": JSON,
        },
    ),
    "stream_interval": SMALL,
}


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([chat, completion]),
    st.lists(st.sampled_from(sorted(FIELDS)), max_size=5, unique=True),
    st.sampled_from([20, -1]),
    st.data(),
)
def test_no_request_gets_past_us_that_the_guard_would_have_to_stop(
    surface: Any, names: list[str], max_logprobs: int, data: st.DataObject
) -> None:
    request = surface(**{name: data.draw(FIELDS[name], label=name) for name in names})

    try:
        params = lower(request, limits=SamplingLimits(max_logprobs=max_logprobs))
    except RequestRejected:
        return

    one_choice = replace(params, n=1)  # the client fans out what asks for more
    guard(
        EngineRequest(request_id="r", prompt_token_ids=[1] * 15, sampling=one_choice),
        GuardLimits(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN),
    )
    assert 1 <= params.max_tokens <= MAX_MODEL_LEN - 15
    assert all(math.isfinite(v) for v in (params.temperature, params.top_p, params.min_p))
