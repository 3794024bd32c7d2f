import logging
import threading
from collections.abc import Sequence

import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.text._tokenizers import (
    KINDS,
    TINY_CHAT,
    reference_of,
    shared_reference,
    source_of,
    tokenizer_of,
)
from vllmfront.errors import ConfigurationError, RequestRejected
from vllmfront.models import load_model_description, resolve_model
from vllmfront.text import Tokenizer, load_tokenizer, tokenizer_from_json
from vllmfront.text._encoder import ReferenceEncoder, choose_encoder
from vllmfront.text._hard_strings import HARD_STRINGS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", [False, True])
def test_ids_are_those_of_the_reference(kind: str, special: bool) -> None:
    tokenizer = tokenizer_of(kind)
    reference = shared_reference(kind)

    for text in HARD_STRINGS:
        expected = reference.encode(text, add_special_tokens=special).ids
        assert tokenizer.encode(text, special) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_decodes_as_in_the_reference(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    reference = shared_reference(kind)

    for token_id in range(tokenizer.vocab_size + 3):
        for skip in (False, True):
            expected = reference.decode([token_id], skip_special_tokens=skip)
            assert tokenizer.decode([token_id], skip) == expected
        name = tokenizer.id_to_token(token_id)
        assert name == reference.id_to_token(token_id)
        assert name is None or tokenizer.token_to_id(name) == reference.token_to_id(name)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_do_not_exist_vanish(kind: str) -> None:
    tokenizer = tokenizer_of(kind)

    assert tokenizer.decode([-1, tokenizer.vocab_size + 9, 1 << 40]) == ""
    assert tokenizer.id_to_token(-1) is None
    assert tokenizer.id_to_token(1 << 40) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", [False, True])
async def test_long_texts_give_the_same_ids(kind: str, special: bool) -> None:
    tokenizer = tokenizer_of(kind)
    text = "Hello wörld, the quick 🙂 fox " * 5000

    expected = shared_reference(kind).encode(text, add_special_tokens=special).ids

    assert len(expected) > 1 << 15
    assert await tokenizer.encode_async(text, special) == expected
    assert tokenizer.encode(text, special) == expected


async def test_short_texts_are_encoded_without_a_thread() -> None:
    with trio.testing.assert_no_checkpoints():
        ids = await tokenizer_of("byte-level").encode_async("Hello")

    assert ids == [1853]


async def test_a_long_encode_can_be_left() -> None:
    # The thread goes on and counts against the limit until it has ended.
    tokenizer = tokenizer_of("unigram")
    release, ended = threading.Event(), threading.Event()

    def use(ids: Sequence[int]) -> None:
        del ids
        release.wait(5)
        ended.set()

    with trio.move_on_after(0.02) as scope:
        await tokenizer.encode_then(use, "word " * 1000)

    assert scope.cancelled_caught
    assert tokenizer._limiter.borrowed_tokens == 1
    release.set()
    with trio.fail_after(5):
        await tokenizer._limiter.acquire_on_behalf_of("one")
        await tokenizer._limiter.acquire_on_behalf_of("two")
    tokenizer._limiter.release_on_behalf_of("one")
    tokenizer._limiter.release_on_behalf_of("two")
    assert ended.is_set()


async def test_what_is_made_of_the_ids_is_made_in_the_thread() -> None:
    tokenizer = tokenizer_of("unigram")

    def reject(ids: Sequence[int]) -> int:
        raise RequestRejected(f"{len(ids)} are too many")

    with pytest.raises(RequestRejected, match="are too many"):
        await tokenizer.encode_then(reject, "word " * 1000)
    assert await tokenizer.encode_then(len, "") == 0


@pytest.mark.parametrize("kind", ["byte-level", "unigram"])
@pytest.mark.parametrize("length", [1, 20000])
async def test_half_a_surrogate_pair_is_the_clients_fault(kind: str, length: int) -> None:
    with pytest.raises(RequestRejected, match="surrogate"):
        await tokenizer_of(kind).encode_async("\ud800" * length)


@pytest.mark.parametrize("kind", ["byte-level", "llama"])
async def test_many_may_use_it_at_once(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    text = "Hello world " * 1000
    expected = tokenizer.encode(text)
    results: list[bool] = []

    def work() -> None:
        for _ in range(5):
            ids = tokenizer.encode(text)
            detokenizer = tokenizer.detokenizer()
            piece = detokenizer.feed(ids[:200])
            results.append(ids == expected and tokenizer.decode(ids[:200]).startswith(piece))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(trio.to_thread.run_sync, work)

    assert results == [True] * 40


def test_the_table_covers_the_models_vocabulary() -> None:
    tokenizer = tokenizer_from_json(source_of("byte-level"), vocab_size=5000)
    table, everything = tokenizer.json_table(), tokenizer.json_table(skip_special_tokens=False)
    assert table is not None
    assert everything is not None

    assert len(table) == len(everything) == 5000
    assert table[4999] == b""
    assert table[2041] == b""
    assert everything[2041] == b"<|im_end|>"
    assert table[2046] == b"<think>"
    assert table[198] == b"\\n"
    assert table[158] is None
    assert tokenizer.vocab_size == 5000


def test_a_replacement_character_in_the_vocabulary_is_left_to_the_detokenizer() -> None:
    reference = reference_of(source_of("byte-level"))
    reference.add_tokens(["x\ufffd"])
    source = reference.to_str()
    tokenizer = tokenizer_from_json(source, vocab_size=2049)
    table = tokenizer.json_table()
    assert table is not None

    assert tokenizer.decode([2048]) == "x\ufffd"
    assert table[2048] is None


@pytest.mark.parametrize("kind", ["unigram", "llama", "wordpiece", "end-of-word"])
def test_others_have_no_table(kind: str) -> None:
    assert tokenizer_of(kind).json_table() is None
    assert not tokenizer_of(kind).is_byte_level


def test_the_fast_encoder_serves_what_it_can_load() -> None:
    assert "fastokens, byte-level" in repr(tokenizer_of("byte-level"))
    assert "tokenizers, windowed" in repr(tokenizer_of("unigram"))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("byte-level", "prompts are encoded by fastokens"),
        ("unigram", "prompts are encoded by tokenizers, which is slower: fastokens cannot use"),
    ],
)
def test_the_log_names_the_encoder(kind: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    tokenizer_from_json(source_of(kind), vocab_size=2048)

    assert caplog.messages[0].startswith(said)


def test_an_encoder_that_disagrees_is_not_trusted() -> None:
    # The file handed to the fast encoder is not the one the reference was made from.
    reference = reference_of(source_of("byte-level"))
    reference.add_tokens(["quick brown"])

    encoder = choose_encoder(source_of("byte-level"), reference)

    assert encoder.name == "tokenizers"


def test_truncation_in_the_file_does_not_cut_prompts() -> None:
    for kind in ("byte-level", "unigram"):
        reference = reference_of(source_of(kind))
        reference.enable_truncation(4)
        reference.enable_padding(length=50)
        tokenizer = tokenizer_from_json(reference.to_str(), vocab_size=3000)

        assert tokenizer.encode("a b c d e f g") == tokenizer_of(kind).encode("a b c d e f g")


def test_a_post_processor_that_is_no_frame_is_still_right() -> None:
    class Pairs(ReferenceEncoder):
        """Stands for a reference whose special tokens depend on the text."""

        def __init__(self) -> None:
            super().__init__(reference_of(source_of("llama")))
            self._reference.no_truncation()
            self._frame = None

    text = "Hello " * 20000
    expected = shared_reference("llama").encode(text).ids

    assert Pairs().encode_long(text, add_special_tokens=True).tolist() == expected
    assert Pairs().encode(text, add_special_tokens=True) == expected


async def test_loading_a_model_folder() -> None:
    model = load_model_description(await resolve_model(str(TINY_CHAT)))

    tokenizer = await load_tokenizer(model)

    assert tokenizer.eos_token_id == 2041
    assert tokenizer.vocab_size == 2048
    assert tokenizer.special_ids == {2039, 2040, 2041}


@pytest.mark.parametrize(
    ("eos_token", "fallback", "expected"),
    [("<|im_end|>", 7, 2041), (None, 7, 7), ("<nope>", 7, 7), (None, None, None)],
)
def test_the_eos_id(eos_token: str | None, fallback: int | None, expected: int | None) -> None:
    tokenizer: Tokenizer = tokenizer_from_json(
        source_of("byte-level"), vocab_size=2048, eos_token=eos_token, eos_token_id=fallback
    )

    assert tokenizer.eos_token_id == expected


@pytest.mark.parametrize("source", ["", "{", "[]", "{}", '{"model": 3}'])
def test_a_broken_file_is_named(source: str) -> None:
    with pytest.raises(ConfigurationError, match=r"here/tokenizer\.json is not a usable"):
        tokenizer_from_json(source, vocab_size=10, name="here/tokenizer.json")
