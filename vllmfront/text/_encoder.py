"""From text to token ids: fastokens where it proves equal to the reference, else tokenizers."""

import array
import sys
from typing import Any, Protocol

import tokenizers

from vllmfront.text._hard_strings import HARD_STRINGS

_FLAT_FROM = 1 << 18
"""Characters from which ids are made in pieces, so that the GIL is free in between."""

_PIECE = 1 << 15
"""Ids made at a time then: below a millisecond."""


class Encoder(Protocol):
    """One way to encode. Safe to call from several threads at once."""

    name: str
    inline_characters: int
    """Texts up to this length take about a millisecond at most; longer ones belong in a thread."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encode *text*; special tokens spelled out in it are recognised."""

    def token_to_id(self, token: str) -> int | None: ...

    def id_to_token(self, token_id: int) -> str | None: ...


class ReferenceEncoder:
    """The ``tokenizers`` library; never changed after loading, so threads can share it."""

    name = "tokenizers"
    inline_characters = 1024  # 1,000 to 4,000 characters a millisecond were measured

    def __init__(self, reference: tokenizers.Tokenizer) -> None:
        self._reference = reference

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # ``encode`` would hold the GIL for as long as it takes; and the fast form keeps no
        # offsets, which take a quarter of a second of GIL to free after a prompt of megabytes.
        batch = self._reference.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def token_to_id(self, token: str) -> int | None:
        return self._reference.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        return self._reference.id_to_token(token_id)


class FastEncoder:
    """The ``fastokens`` library, for the files that it can load."""

    name = "fastokens"
    inline_characters = 8192  # 30,000 a millisecond in ordinary text, 1,500 in runs of spaces

    def __init__(self, source: str) -> None:
        """Load the text of a ``tokenizer.json``.

        Raises:
            Exception: Of whatever type the library chooses, when it cannot load it.
        """
        import fastokens

        self._fast: Any = fastokens.Tokenizer.from_json_str(source)
        self._fast.no_truncation()
        self._fast.no_padding()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) < _FLAT_FROM:
            ids: list[int] = self._fast.encode(text, add_special_tokens).ids
            return ids
        flat, _ = self._fast.encode_batch_flat([text], add_special_tokens)
        return _ids_in_pieces(flat)

    def token_to_id(self, token: str) -> int | None:
        token_id: int | None = self._fast.token_to_id(token)
        return token_id

    def id_to_token(self, token_id: int) -> str | None:
        token: str | None = self._fast.id_to_token(token_id)
        return token


def _ids_in_pieces(flat: bytes) -> list[int]:
    """Make a list of little-endian 32-bit ids without holding the GIL for long."""
    words = array.array("I")
    words.frombytes(flat)
    if sys.byteorder == "big":
        words.byteswap()
    ids: list[int] = []
    for start in range(0, len(words), _PIECE):
        ids.extend(words[start : start + _PIECE])
    return ids


def choose_encoder(source: str, reference: tokenizers.Tokenizer) -> Encoder:
    """Return the fast encoder when it loads the file and agrees with the reference.

    They are compared on a set of hard strings, with and without the special tokens around, and
    with every added token inside text.
    """
    slow = ReferenceEncoder(reference)
    try:
        fast = FastEncoder(source)
        for text in (*HARD_STRINGS, *_added_token_strings(reference)):
            for special in (False, True):
                if fast.encode(text, special) != slow.encode(text, special):
                    return slow
    except Exception:  # noqa: BLE001  # the library raises what it likes; the reference serves all
        return slow
    return fast


def _added_token_strings(reference: tokenizers.Tokenizer) -> list[str]:
    """Put every added token between words, with and without space around it."""
    contents = [token.content for token in reference.get_added_tokens_decoder().values()]
    return ["".join(f"word{token} and {token}" for token in contents), " ".join(contents)]
