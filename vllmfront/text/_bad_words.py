"""Bad words as the engine knows them: by their ids."""

from collections.abc import Iterator

from vllmfront.errors import RequestRejected
from vllmfront.text._prompt import check_ids
from vllmfront.text._request import SamplingLimits, SamplingRequest, Surface
from vllmfront.text._tokenizer import Tokenizer


def lower_bad_words(
    request: SamplingRequest, tokenizer: Tokenizer, vocab_size: int, limits: SamplingLimits
) -> list[list[int]] | None:
    """Tokenize bad words as they appear at the start of a text and within it.

    Raises:
        RequestRejected: There are too many, or one is empty.
    """
    words = request.bad_words
    if not words or request.surface is Surface.COMPLETION:
        return None
    sequences: list[list[int]] = []
    total = 0
    for word in dict.fromkeys(words):
        for sequence in _bad_word(word, tokenizer):
            sequences.append(sequence)
            total += len(sequence)
            check_ids("bad_words", sequence, vocab_size)
        if len(sequences) > limits.max_bad_words:
            raise RequestRejected(
                f"Too many bad words after tokenization: {limits.max_bad_words + 1}."
                f" The max number is {limits.max_bad_words}."
            )
        if total > limits.max_bad_word_tokens:
            raise RequestRejected(
                f"Too many total bad word tokens: {total}. The max is {limits.max_bad_word_tokens}."
            )
    return sequences


def _bad_word(word: str, tokenizer: Tokenizer) -> Iterator[list[int]]:
    if not word:
        raise RequestRejected("bad_words cannot contain an empty string.")
    bare = word.lstrip()
    plain = tokenizer.encode(bare, add_special_tokens=False)
    if not plain:
        raise RequestRejected("bad_words entries must tokenize to at least one token.")
    yield plain
    spaced = tokenizer.encode(" " + bare, add_special_tokens=False)
    # The second form says something new only if the space has become part of a word.
    if len(spaced) == len(plain) and spaced[0] != plain[0]:
        yield spaced
