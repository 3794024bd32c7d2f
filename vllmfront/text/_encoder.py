"""From text to token ids: fastokens where it proves equal to the reference, else tokenizers."""

import array
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from vllmfront.text._hard_strings import HARD_STRINGS

if TYPE_CHECKING:
    import tokenizers

_LOGGER = logging.getLogger(__name__)

_PIECE = 1 << 15
"""Ids handed over at a time, in well below a millisecond; the GIL is free in between."""

IdArray: TypeAlias = "array.array[int]"
"""Ids as 32-bit words: a prompt of megabytes in this form is freed at once, a list is not."""


class Encoder(Protocol):
    """One way to encode. Safe to call from several threads at once."""

    name: str
    inline_characters: int
    """Texts up to this length take about a millisecond at most; longer ones belong in a thread."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encode *text*; special tokens spelled out in it are recognised."""

    def encode_long(self, text: str, add_special_tokens: bool) -> Sequence[int]:
        """As ``encode``, without holding the GIL for long however long *text* is."""

    def token_to_id(self, token: str) -> int | None: ...

    def id_to_token(self, token_id: int) -> str | None: ...


class ReferenceEncoder:
    """The ``tokenizers`` library; never changed after it was made, so threads can share it.

    ``encode`` of that library holds the GIL for as long as it takes, so ``encode_batch`` is used,
    in the form without offsets, which take a quarter of a second of GIL to free after a prompt of
    megabytes. Ids then come out in pieces, because the library is told to truncate: what it cuts
    off it keeps, in further pieces.
    """

    name = "tokenizers"
    inline_characters = 1024  # 1,000 to 4,000 characters a millisecond were measured

    def __init__(self, reference: "tokenizers.Tokenizer") -> None:
        """Take over *reference*; it must not be changed any more."""
        self._reference = reference
        self._frame = _special_frame(reference)
        if self._frame is not None:
            reference.enable_truncation(_PIECE)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        encoding = self._encode(text, add_special_tokens)
        if encoding.overflowing:
            return list(self.encode_long(text, add_special_tokens))
        ids: list[int] = encoding.ids
        return ids

    def _encode(self, text: str, add_special_tokens: bool) -> "tokenizers.Encoding":
        batch = self._reference.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return batch[0]

    def encode_long(self, text: str, add_special_tokens: bool) -> IdArray:
        framed = add_special_tokens and self._frame is not None
        encoding = self._encode(text, add_special_tokens and not framed)
        ids = array.array("I", encoding.ids)
        pieces = encoding.overflowing[::-1]
        del encoding
        while pieces:
            ids.extend(pieces.pop().ids)
        if framed and self._frame is not None:
            before, after = self._frame
            return before + ids + after
        return ids

    def token_to_id(self, token: str) -> int | None:
        return self._reference.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        return self._reference.id_to_token(token_id)


def _special_frame(reference: "tokenizers.Tokenizer") -> tuple[IdArray, IdArray] | None:
    """Return the ids that special tokens add before and after any text, if they are constant."""
    frames = set()
    for text in HARD_STRINGS:
        bare, framed = (
            reference.encode_batch_fast([text], add_special_tokens=special)[0].ids
            for special in (False, True)
        )
        starts = range(len(framed) - len(bare) + 1)
        start = next((i for i in starts if framed[i : i + len(bare)] == bare), None)
        if start is None:
            return None
        if bare:
            frames.add((tuple(framed[:start]), tuple(framed[start + len(bare) :])))
    if len(frames) != 1:
        return None
    before, after = frames.pop()
    return array.array("I", before), array.array("I", after)


_LISTED_CHARACTERS = 1 << 20
"""Up to here ids come as a list: a few milliseconds of work at most, and 120 us less in 10,000."""


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
        ids: list[int] = self._fast.encode(text, add_special_tokens).ids
        return ids

    def encode_long(self, text: str, add_special_tokens: bool) -> Sequence[int]:
        if len(text) <= _LISTED_CHARACTERS:
            return self.encode(text, add_special_tokens)
        return self.encode_flat(text, add_special_tokens)

    def encode_flat(self, text: str, add_special_tokens: bool) -> IdArray:
        """As ``encode``, into an array, which is made and freed at once however long it is."""
        flat, _ = self._fast.encode_batch_flat([text], add_special_tokens)
        ids = array.array("I")
        ids.frombytes(flat)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids

    def token_to_id(self, token: str) -> int | None:
        token_id: int | None = self._fast.token_to_id(token)
        return token_id

    def id_to_token(self, token_id: int) -> str | None:
        token: str | None = self._fast.id_to_token(token_id)
        return token


def choose_encoder(source: str, reference: "tokenizers.Tokenizer") -> Encoder:
    """Return the fast encoder when it loads the file and agrees with the reference.

    They are compared on a set of hard strings, with and without the special tokens around, and
    with added tokens inside text.
    """
    slow = ReferenceEncoder(reference)
    texts = (*HARD_STRINGS, *_added_token_strings(reference))
    try:
        fast = FastEncoder(source)
        different = next((text for text in texts if not _agree(fast, slow, text)), None)
    except Exception as error:  # noqa: BLE001  # the library raises what it likes
        reason = f"{FastEncoder.name} cannot use this tokenizer: {error}"
    else:
        if different is None:
            _LOGGER.info("prompts are encoded by %s", fast.name)
            return fast
        reason = f"{fast.name} encodes {different[:_SHOWN]!r} differently"
    _LOGGER.warning("prompts are encoded by %s, which is slower: %s", slow.name, reason)
    return slow


def _agree(fast: FastEncoder, slow: ReferenceEncoder, text: str) -> bool:
    for special in (False, True):
        ids = slow.encode(text, special)
        if fast.encode(text, special) != ids or fast.encode_flat(text, special).tolist() != ids:
            return False
    return True


def _added_token_strings(reference: "tokenizers.Tokenizer") -> list[str]:
    """Put added tokens between words, with and without space around them."""
    added = reference.get_added_tokens_decoder()
    contents = [added[token_id].content for token_id in sorted(added)]
    # Thousands of them are placeholders, one like the other.
    contents = list(dict.fromkeys(contents[:_ADDED_TRIED] + contents[-_ADDED_TRIED:]))
    return ["".join(f"word{token} and {token}" for token in contents), " ".join(contents)]


_SHOWN = 100
"""Characters of a text that a log line repeats."""

_ADDED_TRIED = 100
"""Added tokens tried at either end of the vocabulary."""
