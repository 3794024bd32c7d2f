"""Tokens and text: one tokenizer over two libraries."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import trio

from vllmfront.errors import RequestRejected
from vllmfront.text._bytelevel import byte_table, escaped_table
from vllmfront.text._detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from vllmfront.text._encoder import Encoder

if TYPE_CHECKING:
    import tokenizers

_LONG_ENCODES = 2
"""Long prompts encoded at a time: more would only fight for the processors."""


_PIECE = 1 << 15
"""Ids copied at a time, in well below a millisecond."""

_T = TypeVar("_T")


_NO_CHARACTER = (UnicodeEncodeError, TypeError)
"""What the libraries raise for half of a surrogate pair."""


def _lone_surrogate() -> RequestRejected:
    return RequestRejected("The prompt contains a lone surrogate, which cannot be encoded.")


def as_list(token_ids: Sequence[int]) -> list[int]:
    """Make a list in pieces, so that the GIL is free in between."""
    if isinstance(token_ids, list):
        return token_ids
    ids: list[int] = []
    for start in range(0, len(token_ids), _PIECE):
        ids.extend(token_ids[start : start + _PIECE])
    return ids


class Tokenizer:
    """Encodes and decodes; safe to use from several tasks and threads at once.

    Nothing in it changes after it was made (``load_tokenizer`` makes it), so no call can find
    it borrowed by another.
    """

    def __init__(
        self,
        encoder: Encoder,
        reference: "tokenizers.Tokenizer",
        *,
        byte_level: bool,
        vocab_size: int,
        eos_token_id: int | None = None,
    ) -> None:
        """Make a tokenizer; see ``load_tokenizer``.

        Args:
            encoder: Encodes, and knows the vocabulary strings.
            reference: Read for its tables; kept only where they do not suffice to decode.
            byte_level: Whether each token stands for fixed bytes.
            vocab_size: The model's; the tables reach at least that far.
            eos_token_id: What ends a text.
        """
        added = reference.get_added_tokens_decoder()
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        self.special_ids: frozenset[int] = frozenset(i for i, t in added.items() if t.special)
        """Ids that ``skip_special_tokens`` skips; other added tokens always stay."""

        self._encoder = encoder
        self._limiter = trio.CapacityLimiter(_LONG_ENCODES)
        self._bytes: list[bytes] | None = None
        self._escaped: list[bytes | None] | None = None
        self._escaped_all: list[bytes | None] | None = None
        self.stays_in_vocabulary = False
        """Whether everything that it encodes is known to be in the model's vocabulary."""

        if byte_level:
            self._bytes = byte_table(reference.get_vocab(with_added_tokens=True), vocab_size)
            self.stays_in_vocabulary = len(self._bytes) <= vocab_size
            self._escaped_all = escaped_table(self._bytes)
            self._escaped = list(self._escaped_all)
            for token_id in self.special_ids:
                self._escaped[token_id] = b""
        else:
            self._reference = reference

    def __repr__(self) -> str:
        kind = "byte-level" if self.is_byte_level else "windowed"
        return f"<Tokenizer {self.vocab_size} ids, {self._encoder.name}, {kind}>"

    @property
    def is_byte_level(self) -> bool:
        """Whether ``json_table`` exists."""
        return self._bytes is not None

    @property
    def inline_characters(self) -> int:
        """How long a text may be to be encoded in about a millisecond."""
        return self._encoder.inline_characters

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encode *text*; blocks for as long as that takes.

        Raises:
            RequestRejected: The text holds half of a surrogate pair, which is no character.
        """
        try:
            return self._encoder.encode(text, add_special_tokens)
        except _NO_CHARACTER as error:
            raise _lone_surrogate() from error

    async def encode_async(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encode *text*; what takes longer than about a millisecond does so in a worker thread.

        A short text is encoded at once, without a checkpoint. Cancelled while the thread runs,
        it returns at once: the thread cannot be stopped, but its result is dropped, and it counts
        against the limit on long encodes until it has ended.

        Raises:
            RequestRejected: As ``encode``.
        """
        return await self.encode_then(as_list, text, add_special_tokens)

    async def encode_then(
        self, use: Callable[[Sequence[int]], _T], text: str, add_special_tokens: bool = True
    ) -> _T:
        """As ``encode_async``, and return what *use* makes of the ids, in the same thread.

        For prompts that may be far too long: of these nothing but the verdict comes back, because
        even to free a list of millions takes the event loop tens of milliseconds.

        Raises:
            RequestRejected: As ``encode``, or from *use*.
        """
        if len(text) <= self._encoder.inline_characters:
            return use(self.encode(text, add_special_tokens))

        def encode_and_use() -> _T:
            try:
                ids = self._encoder.encode_long(text, add_special_tokens)
            except _NO_CHARACTER as error:
                raise _lone_surrogate() from error
            return use(ids)

        return await trio.to_thread.run_sync(
            encode_and_use, abandon_on_cancel=True, limiter=self._limiter
        )

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode *token_ids* as a whole; unknown ids vanish."""
        table = self._bytes
        if table is None:
            return self._reference.decode(
                [i for i in token_ids if 0 <= i < 1 << 32], skip_special_tokens=skip_special_tokens
            )
        skipped = self.special_ids if skip_special_tokens else ()
        size = len(table)
        parts = [table[i] for i in token_ids if 0 <= i < size and i not in skipped]
        return b"".join(parts).decode("utf-8", "replace")

    def id_to_token(self, token_id: int) -> str | None:
        """Return the vocabulary's own string for an id, such as ``Ġworld``; None if unknown."""
        return self._encoder.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None

    def token_to_id(self, token: str) -> int | None:
        return self._encoder.token_to_id(token)

    def detokenizer(
        self, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> Detokenizer:
        """Return an incremental decoder for what follows the prompt."""
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        if self._bytes is not None:
            return ByteDetokenizer(self._bytes, skipped, prompt_token_ids)
        return WindowDetokenizer(
            lambda ids: self.decode(ids, skip_special_tokens), skipped, prompt_token_ids
        )

    def json_table(self, skip_special_tokens: bool = True) -> Sequence[bytes | None] | None:
        """Return each id's text as the inside of a JSON string, or None if it has no fixed one.

        ``b""`` stands for unknown ids and, when they are skipped, special ones; None for ids that
        need a detokenizer, because they are only part of a character. The table reaches beyond
        all ids that the engine knows. It holds while the detokenizer has nothing ``pending``.
        """
        return self._escaped if skip_special_tokens else self._escaped_all
