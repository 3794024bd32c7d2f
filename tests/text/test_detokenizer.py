import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text._tokenizers import KINDS, shared_reference, tokenizer_of
from vllmfront.text import Detokenizer, Tokenizer
from vllmfront.text._detokenizer import LONGEST_HELD, WindowDetokenizer

TEXTS = st.text(
    st.sampled_from("abcdefghij THE.,!?\nöéß你好€𐍈🙂👍🏽\u200d\u0301\ufffd"),
    min_size=0,
    max_size=40,
)
KIND = st.sampled_from(KINDS)


def run(detokenizer: Detokenizer, ids: list[int]) -> str:
    return "".join([*map(detokenizer.feed_one, ids), detokenizer.finish()])


def byte_ids(tokenizer: Tokenizer, *values: int) -> list[int]:
    """Return the ids of single bytes of a byte-level vocabulary."""
    table = tokenizer._bytes
    assert table is not None
    return [table.index(bytes([value])) for value in values]


@settings(deadline=None)
@given(KIND, TEXTS, st.booleans())
def test_pieces_add_up_to_the_decoded_whole(kind: str, text: str, skip: bool) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text)

    result = run(tokenizer.detokenizer(skip_special_tokens=skip), ids)

    assert result == shared_reference(kind).decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(KIND, TEXTS, TEXTS)
def test_after_a_prompt_only_the_rest_comes_out(kind: str, before: str, after: str) -> None:
    tokenizer = tokenizer_of(kind)
    prompt = tokenizer.encode("Hello " + before + "x")
    answer = tokenizer.encode("x" + after, add_special_tokens=False)

    result = run(tokenizer.detokenizer(prompt), answer)

    assert tokenizer.decode(prompt) + result == tokenizer.decode(prompt + answer)


@settings(deadline=None)
@given(KIND, st.data(), st.booleans())
def test_any_chunking_of_any_ids_gives_the_same_text(
    kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizer_of(kind)
    ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size + 1), max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    prompt = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=8))

    whole = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    expected = whole.feed(ids) + whole.finish()
    chunked = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    edges = [0, *cuts, len(ids)]
    parts = [chunked.feed(ids[a:b]) for a, b in itertools.pairwise(edges)]

    assert "".join(parts) + chunked.finish() == expected
    assert not chunked.pending
    assert run(tokenizer.detokenizer(prompt, skip_special_tokens=skip), ids) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 2060), max_size=30), st.booleans())
def test_byte_level_pieces_of_any_ids_add_up(ids: list[int], skip: bool) -> None:
    tokenizer = tokenizer_of("byte-level")

    result = run(tokenizer.detokenizer(skip_special_tokens=skip), ids)

    assert result == shared_reference("byte-level").decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", KINDS)
def test_no_piece_ends_in_a_replacement_that_later_tokens_resolve(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("a🙂b你👍🏽", add_special_tokens=False)
    detokenizer = tokenizer.detokenizer()

    pieces = [detokenizer.feed_one(token_id) for token_id in ids]

    assert not any("\ufffd" in piece for piece in pieces)


def test_a_token_with_part_of_a_character_is_held_as_a_whole() -> None:
    # " " and the first half of the emoji are one token here; the peer releases nothing of it.
    tokenizer = tokenizer_of("byte-level")
    ids = tokenizer.encode(" 🙂")
    detokenizer = tokenizer.detokenizer()

    pieces = [detokenizer.feed_one(token_id) for token_id in ids]

    assert pieces == ["", "", " 🙂"]
    assert not detokenizer.pending


def test_broken_bytes_are_held_until_something_whole_follows() -> None:
    tokenizer = tokenizer_of("byte-level")
    ids = [*byte_ids(tokenizer, 0xFF, 0xE2), *tokenizer.encode("a"), *byte_ids(tokenizer, 0x80)]
    detokenizer = tokenizer.detokenizer()

    pieces = [detokenizer.feed_one(token_id) for token_id in ids]

    assert pieces == ["", "", "\ufffd\ufffda", ""]
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("prompt_bytes", [(0xE2,), (0xE2, 0x82)])
def test_a_character_that_the_prompt_began_comes_whole_and_alone(
    prompt_bytes: tuple[int, ...],
) -> None:
    tokenizer = tokenizer_of("byte-level")
    prompt = tokenizer.encode("Hello") + byte_ids(tokenizer, *prompt_bytes)
    rest = byte_ids(tokenizer, 0xE2, 0x82, 0xAC)[len(prompt_bytes) :]

    result = run(tokenizer.detokenizer(prompt), rest + tokenizer.encode("a"))

    assert result == "€a"


def test_what_the_prompt_left_broken_is_not_part_of_the_answer() -> None:
    tokenizer = tokenizer_of("byte-level")
    prompt = tokenizer.encode("Hello") + byte_ids(tokenizer, 0xE2, 0x82)

    assert run(tokenizer.detokenizer(prompt), tokenizer.encode("ab")) == "ab"
    assert run(tokenizer.detokenizer(prompt), []) == ""
    assert run(tokenizer.detokenizer(prompt[:-1]), byte_ids(tokenizer, 0x82)) == "\ufffd"


def test_the_same_holds_for_bytes_spelled_as_tokens() -> None:
    tokenizer = tokenizer_of("llama")
    prompt = [*tokenizer.encode("Hello"), _byte(tokenizer, 0xE2), _byte(tokenizer, 0x82)]
    a = tokenizer.token_to_id("a")
    assert a is not None

    assert run(tokenizer.detokenizer(prompt), [_byte(tokenizer, 0xAC), a]) == "€a"
    assert run(tokenizer.detokenizer(prompt), [a, a]) == "aa"


def _byte(tokenizer: Tokenizer, value: int) -> int:
    token_id = tokenizer.token_to_id(f"<0x{value:02X}>")
    assert token_id is not None
    return token_id


def test_the_first_word_keeps_its_space_after_a_prompt_and_loses_it_without() -> None:
    tokenizer = tokenizer_of("llama")
    answer = tokenizer.encode("world", add_special_tokens=False)

    assert run(tokenizer.detokenizer(tokenizer.encode("Hello")), answer) == " world"
    assert run(tokenizer.detokenizer(), answer) == "world"
    assert run(tokenizer.detokenizer(tokenizer.encode("")), answer) == "world"


def test_a_skipped_token_does_not_eat_the_next_space() -> None:
    tokenizer = tokenizer_of("llama")
    end = tokenizer.token_to_id("</s>")
    assert end is not None
    hello = tokenizer.encode("Hello", add_special_tokens=False)

    assert run(tokenizer.detokenizer(), [*hello, end, end, *hello]) == "Hello Hello"


def test_broken_bytes_do_not_change_what_is_out() -> None:
    tokenizer = tokenizer_of("llama")
    a = tokenizer.token_to_id("a")
    assert a is not None
    euro = [_byte(tokenizer, value) for value in "€".encode()]
    detokenizer = tokenizer.detokenizer(tokenizer.encode("x"))

    pieces = [detokenizer.feed_one(i) for i in [*euro, _byte(tokenizer, 0xFF), a]]

    assert "".join(pieces) == "€\ufffda"


def test_endless_broken_bytes_are_let_go_in_the_end() -> None:
    tokenizer = tokenizer_of("llama")
    detokenizer = tokenizer.detokenizer()

    pieces = [detokenizer.feed_one(_byte(tokenizer, 0xFF)) for _ in range(3 * LONGEST_HELD)]

    assert "".join(pieces).strip("\ufffd") == ""
    assert any(pieces)
    assert isinstance(detokenizer, WindowDetokenizer)
    assert len(detokenizer._prefix) <= LONGEST_HELD


def test_invisible_tokens_do_not_make_the_window_grow() -> None:
    tokenizer = tokenizer_of("llama")
    space = tokenizer.token_to_id("\u2581")
    assert space is not None
    detokenizer = tokenizer.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)

    for _ in range(5 * LONGEST_HELD):
        detokenizer.feed_one(tokenizer.vocab_size + 7)
    detokenizer.feed_one(space)

    assert len(detokenizer._prefix) + len(detokenizer._fresh) <= 2 * LONGEST_HELD


def test_added_tokens_stand_apart() -> None:
    tokenizer = tokenizer_of("wordpiece")
    ids = tokenizer.encode("hello <tool> world")

    apart = run(tokenizer.detokenizer(skip_special_tokens=False), [2, 2, *ids])

    assert apart.startswith("[SEP] [SEP] [CLS] hello <tool>")


def test_special_tokens_are_skipped_and_other_added_ones_stay() -> None:
    tokenizer = tokenizer_of("byte-level")
    ids = tokenizer.encode("<|im_start|>a<think>b<|im_end|>")

    assert run(tokenizer.detokenizer(), ids) == "a<think>b"
    assert (
        run(tokenizer.detokenizer(skip_special_tokens=False), ids)
        == "<|im_start|>a<think>b<|im_end|>"
    )


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_the_table_and_the_detokenizer_agree(seed: int) -> None:
    tokenizer = tokenizer_of("byte-level")
    table = tokenizer.json_table()
    assert table is not None
    rng = random.Random(seed)
    ids = [rng.randrange(tokenizer.vocab_size) for _ in range(60)]
    detokenizer = tokenizer.detokenizer()

    text = ""
    for token_id in ids:
        piece = table[token_id]
        if piece is None or detokenizer.pending:
            text += detokenizer.feed_one(token_id)
        else:
            text += _unescape(piece)

    assert text + detokenizer.finish() == tokenizer.decode(ids)


def _unescape(piece: bytes) -> str:
    text = json.loads(b'"' + piece + b'"')
    assert isinstance(text, str)
    return text
