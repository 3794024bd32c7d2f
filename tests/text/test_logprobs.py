"""Logprobs in the shapes that the peer was seen to answer with."""

import json
import math
from typing import Any

import msgspec
import pytest

from tests.text._requests import TOKENIZER
from vllmfront.engine import Logprobs
from vllmfront.text import (
    CompletionLogprobs,
    LogprobDecoder,
    PromptLogprob,
    finite_logprob,
)

A, B, C = 64, 65, 66
IM_START, IM_END = 2040, 2041
E2, X82 = 158, 224  # the first two bytes of "€"
INF, NAN = math.inf, math.nan


def rows(*positions: tuple[list[int], list[float], int]) -> Logprobs:
    ids, values, ranks = zip(*positions, strict=True)
    return Logprobs(ids, values, ranks)


OUTSIDE = ([A, B, C], [-0.5, -1.25, -2.5], 7)  # the sampled token is none of the top two
FIRST = ([B, B, C], [-0.25, -0.25, -2.5], 1)
SECOND = ([C, B, C], [-2.5, -1.25, -2.5], 2)


def chat(
    logprobs: Logprobs, top: int | None, **options: bool
) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Return token, logprob and top candidates of each position."""
    decoder = LogprobDecoder(TOKENIZER, **options)
    result = []
    for fragment in decoder.chat(logprobs, top):
        entry = json.loads(fragment)
        for item in [entry, *entry["top_logprobs"]]:
            assert bytes(item["bytes"]).decode() == item["token"]
        tops = [(item["token"], item["logprob"]) for item in entry["top_logprobs"]]
        result.append((entry["token"], entry["logprob"], tops))
    return result


@pytest.mark.parametrize(
    ("position", "top", "expected"),
    [
        (OUTSIDE, 2, [("a", -0.5), ("b", -1.25)]),
        (OUTSIDE, 1, [("a", -0.5)]),
        (OUTSIDE, 0, []),
        (OUTSIDE, 5, [("a", -0.5), ("b", -1.25), ("c", -2.5)]),
        (OUTSIDE, None, [("a", -0.5), ("b", -1.25), ("c", -2.5)]),
        (FIRST, 2, [("b", -0.25), ("c", -2.5)]),
        (SECOND, 2, [("c", -2.5), ("b", -1.25)]),
    ],
)
def test_chat_gives_the_sampled_token_and_then_the_best(
    position: Any, top: int | None, expected: list[tuple[str, float]]
) -> None:
    assert chat(rows(position), top)[0][2] == expected


def test_the_bytes_of_a_chat_entry() -> None:
    fragment = LogprobDecoder(TOKENIZER).chat(
        rows(([A, 198], [-0.0051768300123512745, -7.0], 1)), 2
    )

    assert fragment == [
        (
            b'{"token":"a","logprob":-0.00517683,"bytes":[97],"top_logprobs":['
            b'{"token":"a","logprob":-0.00517683,"bytes":[97]},'
            b'{"token":"\\n","logprob":-7.0,"bytes":[10]}]}'
        )
    ]


def test_parts_of_characters_show_as_replacements() -> None:
    partial = rows(([E2, E2, X82], [-1, -1, -2], 1))

    assert chat(partial, 2) == [("\ufffd", -1.0, [("\ufffd", -1.0), ("\ufffd", -2.0)])]


def test_special_tokens_show_as_nothing_unless_they_are_kept() -> None:
    special = rows(([IM_END, IM_END, IM_START], [-1, -1, -3], 1))

    assert chat(special, 2) == [("", -1.0, [("", -1.0), ("", -3.0)])]
    assert chat(special, 1, skip_special_tokens=False) == [
        ("<|im_end|>", -1.0, [("<|im_end|>", -1.0)])
    ]


def test_tokens_may_be_named_by_id() -> None:
    assert chat(rows(FIRST), 1, as_token_ids=True) == [
        ("token_id:65", -0.25, [("token_id:65", -0.25)])
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-INF, -9999.0), (NAN, -9999.0), (-10000.0, -9999.0), (-9998.5, -9998.5), (-0.1, -0.1)],
)
def test_no_number_breaks_json(value: float, shown: float) -> None:
    assert finite_logprob(value) == shown
    assert chat(rows(([A, B], [value, value], 1)), 2) == [
        ("a", shown, [("a", shown), ("b", shown)])
    ]


def test_plus_infinity_is_null() -> None:
    assert b'"logprob":null' in LogprobDecoder(TOKENIZER).chat(rows(([A], [INF], 1)), 0)[0]


def test_unknown_ids_show_as_nothing() -> None:
    assert chat(rows(([A, 5000], [-1, -2], 1)), 2) == [("a", -1.0, [("a", -1.0), ("", -2.0)])]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (OUTSIDE, {"b": -1.25, "c": -2.5, "a": -0.5}),
        (FIRST, {"b": -0.25, "c": -2.5}),
        (([A], [-0.5], 7), {"a": -0.5}),
        # Of equal texts the last candidate stays, and not the sampled one.
        (([X82, E2, X82], [-2, -1, -2], 2), {"\ufffd": -2.0}),
        (([E2, E2, X82], [-1, -1, -2], 1), {"\ufffd": -2.0}),
        (([A, IM_END, IM_START], [-1, -2, -3], 1), {"": -3.0, "a": -1.0}),
    ],
)
def test_completions_map_text_to_number(position: Any, expected: dict[str, float]) -> None:
    assert LogprobDecoder(TOKENIZER).completion(rows(position)).top_logprobs == [expected]


def test_offsets_count_the_characters_of_the_names() -> None:
    logprobs = rows(([1853], [-1], 1), ([E2], [-1], 1), ([X82], [-1], 1), ([A], [-1], 1))

    assert LogprobDecoder(TOKENIZER).completion(logprobs, 2).text_offset == [2, 7, 8, 9]
    named = LogprobDecoder(TOKENIZER, as_token_ids=True).completion(logprobs)
    assert named.text_offset == [0, 13, 25, 37]
    assert named.tokens[0] == "token_id:1853"


def test_a_completions_logprobs_as_json() -> None:
    value = LogprobDecoder(TOKENIZER).completion(rows(OUTSIDE))

    assert msgspec.json.encode(value) == (
        b'{"tokens":["a"],"token_logprobs":[-0.5],'
        b'"top_logprobs":[{"b":-1.25,"c":-2.5,"a":-0.5}],"text_offset":[0]}'
    )


PROMPT = rows(([10, 11, 12], [-1.5, -0.5, -0.75], 5), ([13, 13, 12], [-0.1, -0.1, -INF], 1))


def test_an_echoed_prompt_leads_the_arrays() -> None:
    decoder = LogprobDecoder(TOKENIZER)
    prompt = decoder.echo([9, 10, 13], PROMPT)

    whole = prompt + decoder.completion(rows(([A], [-0.5], 7)), 3)

    assert whole == CompletionLogprobs(
        ["*", "+", ".", "a"],
        [None, -1.5, -0.1, -0.5],
        [
            None,
            {",": -0.5, "-": -0.75, "+": -1.5},
            {".": -0.1, "-": -9999.0},
            {"a": -0.5},
        ],
        [0, 1, 2, 3],
    )
    assert decoder.echo([9], None) == CompletionLogprobs(["*"], [None], [None], [0])


def test_prompt_logprobs_are_named_by_id_and_carry_ranks() -> None:
    expected = [
        None,
        {
            10: PromptLogprob(-1.5, 5, "+"),
            11: PromptLogprob(-0.5, 1, ","),
            12: PromptLogprob(-0.75, 2, "-"),
        },
        {13: PromptLogprob(-0.1, 1, "."), 12: PromptLogprob(-9999.0, 2, "-")},
    ]

    # Naming tokens by id changes nothing here.
    assert LogprobDecoder(TOKENIZER).prompt(PROMPT) == expected
    assert LogprobDecoder(TOKENIZER, as_token_ids=True).prompt(PROMPT) == expected
    assert LogprobDecoder(TOKENIZER).prompt(None) == [None]


def test_prompt_logprobs_as_json() -> None:
    value = LogprobDecoder(TOKENIZER).prompt(rows(([10], [-1.5], 5)))

    assert msgspec.json.encode(value) == (
        b'[null,{"10":{"logprob":-1.5,"rank":5,"decoded_token":"+"}}]'
    )
