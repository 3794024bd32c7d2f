"""Random requests: most of them nearly right, so that many pass the guard."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from vllmfront.engine._request import (
    EngineRequest,
    LoraRequest,
    PoolingParams,
    RepetitionDetection,
    SamplingParams,
    StructuredOutputs,
)
from vllmfront.engine.wire import Tensor

VOCAB_SIZE = 2048
MAX_MODEL_LEN = 1024
BACKEND = "xgrammar"

# How often a field is set at all, set to a wrong value of its kind, and set to anything.
SET = 0.06
WRONG = 0.1
WILD = 0.004

Maker = Callable[[random.Random], Any]


def nested(depth: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


WILD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**64, -(2**63) - 1, 10**5000),
    *(0.0, -0.0, 1.0, 1.5, -1.5, 1e300, 5e-324, math.nan, math.inf, -math.inf),
    *("", "x", "\ud800", "a\0b", b"x", object(), Ellipsis),
    *([], (), {}, [1], [None], ["x"], [1.5], [True], [[1]], [[]], (1, 2), range(3), {1, 2}),
    *({"a": 1}, {1: 2}, {"a": 2**64}, {"a": math.nan}, {"\ud800": 1}, {"a": b"x"}),
    *(nested(60), nested(200)),
    *(Tensor("float32", (2, 3), bytes(24)), SamplingParams(), PoolingParams(), Tensor),
)


def token(rng: random.Random) -> int:
    return rng.choice((0, 1, VOCAB_SIZE - 1, rng.randrange(VOCAB_SIZE)))


def edge_token(rng: random.Random) -> int:
    """Return an id that is seldom out of the vocabulary."""
    return rng.choice((-1, VOCAB_SIZE, 2**31)) if rng.random() < 0.004 else token(rng)


def tokens(low: int, high: int) -> Maker:
    return lambda rng: [edge_token(rng) for _ in range(rng.randint(low, high))]


def prompt(rng: random.Random) -> list[int]:
    if rng.random() < 0.1:
        length = one_of(127, 128, 129, 1022, 1023, wrong=(0, 1024, 1025))(rng)
        return [edge_token(rng)] * length
    return [edge_token(rng) for _ in range(rng.randint(1, 8))]


def one_of(*values: Any, wrong: tuple[Any, ...] = ()) -> Maker:
    """Choose among *values*, seldom among those that are *wrong*."""
    return lambda rng: rng.choice(wrong if wrong and rng.random() < WRONG else values)


def text(rng: random.Random) -> str:
    return rng.choice(("", "x", "pepper", "ü\u2028", "x" * 5000, "\0", "🦜"))


SCHEMAS: tuple[Any, ...] = (
    *({}, {"type": "object"}, {"type": "banana"}, {"$ref": "#/nope"}, nested(20)),
    {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 0}]},
)
CONSTRAINTS: Mapping[str, Maker] = {
    "json": one_of(
        *(*SCHEMAS, "{}", '{"type": "string"}', "true"), wrong=(True, "[1]", "{", "", "null")
    ),
    "regex": one_of("[a-c]{4}X", "([", "", "a|b", "(?=a)b", "\\d+", "(a{20}){20}", wrong=("a\0",)),
    "choice": one_of(["a"], ["yes", "no"], [""], ['q"\\\n\t', "ü🦜"], ["a", "a"], wrong=([],)),
    "grammar": one_of(
        *('root ::= "ab" | "cd"', "root ::= nope", 'root ::= root "a"'), wrong=("", " ")
    ),
    "json_object": one_of(True, wrong=(False,)),
    "structural_tag": one_of("{}", '{"format": {"type": "any"}}', wrong=("[]", "", "x")),
}


def constraint(rng: random.Random) -> StructuredOutputs:
    names = rng.sample(list(CONSTRAINTS), rng.choice((1,) * 18 + (0, 2)))
    fields: dict[str, Any] = {"backend": BACKEND} | {name: CONSTRAINTS[name](rng) for name in names}
    if rng.random() < WRONG:
        fields["disable_any_whitespace"] = True
    if rng.random() < WRONG:
        fields["whitespace_pattern"] = rng.choice(("\\s", "(((", ""))
    if rng.random() < WRONG / 5:
        fields["backend"] = rng.choice(("auto", "", "banana"))
    return wilder(rng, StructuredOutputs(**fields))


def repetition(rng: random.Random) -> RepetitionDetection:
    return RepetitionDetection(
        max_pattern_size=one_of(2, 8, 2**62, wrong=(0, -1))(rng),
        min_pattern_size=one_of(0, 1, 2, wrong=(3, -1))(rng),
        min_count=one_of(2, 3, 2**62, wrong=(0, 1))(rng),
    )


def extra(rng: random.Random) -> dict[str, Any]:
    values = (1, "x", None, 2**64 - 1, -(2**63), [1, "2", {"3": 4.5}], nested(30))
    params = one_of({"do_remote_prefill": True}, {}, None, wrong=("x", 3))
    return {
        rng.choice(("key", "kv_cache_report_mode")): rng.choice(values),
        rng.choice(("kv_transfer_params", "ec_transfer_params", "other")): params(rng),
    }


def scored(rng: random.Random) -> Tensor:
    rows = rng.randint(1, 6)
    return Tensor.from_rows("<i4", [[rng.choice((-1, 0, VOCAB_SIZE - 1)), 5] for _ in range(rows)])


SAMPLING: Mapping[str, Maker] = {
    "temperature": one_of(0.0, 1e-300, 1e-4, 0.7, 1.0, 2.0, 1, 0, wrong=(2.5, -0.1)),
    "top_p": one_of(1.0, 0.9, 1e-30, 1, wrong=(1e-300, 0.0)),
    "top_k": one_of(0, -1, 1, 20, VOCAB_SIZE, 2**62, wrong=(-2,)),
    "min_p": one_of(0.0, 0.5, 1.0, 1, wrong=(1.5,)),
    "presence_penalty": one_of(-2.0, 2.0, 0.5, 2, wrong=(3.0,)),
    "frequency_penalty": one_of(-2.0, 2.0, 0.5, -2, wrong=(-3.0,)),
    "repetition_penalty": one_of(1.0, 1.2, 1e-30, 1e30, 2, wrong=(1e-300, 1e300, 0.0)),
    "seed": one_of(0, 1, -1, 2**63 - 1, -(2**63), wrong=(2**63,)),
    "min_tokens": one_of(0, 1, wrong=(2, 3, 2**30)),
    "stop_token_ids": tokens(0, 5),
    "all_stop_token_ids": tokens(0, 5),
    "eos_token_id": edge_token,
    "logprobs": one_of(0, 1, 3, -1, VOCAB_SIZE, wrong=(VOCAB_SIZE + 1, -2)),
    "prompt_logprobs": one_of(0, 1, 3, VOCAB_SIZE, wrong=(VOCAB_SIZE + 1, -2)),
    "logprob_token_ids": one_of([], [1, 2], [5] * 128, wrong=([1] * 129,)),
    "logit_bias": lambda rng: {
        edge_token(rng): rng.choice((-100.0, 100, 0.5, 1e38, -1e38))
        for _ in range(rng.randint(0, 9))
    },
    "allowed_token_ids": tokens(1, 20),
    "bad_words_token_ids": lambda rng: [
        [edge_token(rng) for _ in range(rng.choice((1, 2, 3)) if rng.random() > 0.02 else 0)]
        for _ in range(rng.randint(0, 4))
    ],
    "structured_outputs": constraint,
    "thinking_token_budget": one_of(-1, 0, 5, 2**62, wrong=(-2,)),
    "repetition_detection": repetition,
    "watermarking": one_of(True, False),
    "stream_interval": one_of(1, 5, 2**62, wrong=(0,)),
    "skip_reading_prefix_cache": one_of(True, False),
    "prompt_logprob_token_ids": scored,
    "prompt_logprob_start": one_of(None, wrong=(0, 1, 2)),
    "routed_experts_prompt_start": one_of(0, wrong=(1, 2000)),
    "trace_decode_token_ids": tokens(1, 4),
    "extra_args": extra,
    "n": one_of(1, wrong=(2, 0)),
}


def sampling(rng: random.Random) -> SamplingParams:
    fields: dict[str, Any] = {
        name: make(rng) for name, make in SAMPLING.items() if rng.random() < SET
    }
    most = rng.choice((1, 2, 3, 5, 5, 30)) if rng.random() < 0.98 else rng.choice((400, 2**40, 0))
    return wilder(rng, SamplingParams(**{"max_tokens": most, **fields}))


def pooling(rng: random.Random) -> PoolingParams:
    return wilder(
        rng, PoolingParams(task=rng.choice(("embed", "classify", "generate", "token_embed")))
    )


def hints(rng: random.Random) -> dict[str, Any]:
    action = {"action_id": "a", "action_type": "t", "action_version": "1", "payload": {"x": 1}}
    if rng.random() < WRONG:
        action.pop(rng.choice(list(action)))
    return {"protocol_version": "0.1", "message_id": "m", "actions": [action]}


REQUEST: Mapping[str, Maker] = {
    "cache_salt": text,
    "data_parallel_rank": one_of(0, wrong=(1, -1)),
    "priority": one_of(0, -5, 5, 2**63 - 1, -(2**63), wrong=(2**63,)),
    "trace_headers": one_of({}, {"traceparent": "00-aa-bb-01"}, {"a": "ü"}, wrong=({"a": 1},)),
    "session_id": text,
    "reasoning_ended": one_of(None, True, False),
    "reasoning_parser_kwargs": one_of({}, {"chat_template_kwargs": {"enable_thinking": False}}),
    "mm_features": one_of([], wrong=([{"modality": "image"}],)),
    "prompt_embeds": one_of(None, wrong=(Tensor("bfloat16", (2, 64), bytes(256)),)),
    "prompt_is_token_ids": one_of(None, wrong=([True], [True, False])),
    "lora": one_of(None, wrong=(LoraRequest(name="l", int_id=1, path="p"),)),
    "kv_hints": hints,
    "arrival_time": one_of(0.0, 1.7e9, 5, wrong=(-1.0, 1e300)),
    "abort_immediately": one_of(False, True),
}


T = TypeVar("T", EngineRequest, SamplingParams, PoolingParams, StructuredOutputs)


def wilder(rng: random.Random, value: T) -> T:
    """Put any value at all in a few fields."""
    changes = {
        name: rng.choice(WILD_VALUES)
        for name in type(value).__struct_fields__
        if rng.random() < WILD
    }
    return replace(value, **changes) if changes else value


def random_request(rng: random.Random) -> EngineRequest:
    fields: dict[str, Any] = {
        name: make(rng) for name, make in REQUEST.items() if rng.random() < SET
    }
    if rng.random() < WRONG / 5:
        fields["pooling"] = pooling(rng)
    else:
        fields["sampling"] = sampling(rng)
    request = EngineRequest(request_id="random", prompt_token_ids=prompt(rng), **fields)
    return wilder(rng, request)


requests = st.randoms(use_true_random=True).map(random_request)
