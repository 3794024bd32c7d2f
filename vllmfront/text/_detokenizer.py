"""From token ids to text, piece by piece.

Text is released up to the last complete character: while it ends in a replacement character,
more bytes of the same character may come, so it is held. Two ways lead there. For byte-level
vocabularies every token stands for fixed bytes, and an incremental UTF-8 decoder is all there is
to it. For everything else what a token looks like depends on its neighbours (a leading space
that only the first word loses, bytes spelled as tokens), so a short window of ids is decoded
again with the reference decoder for each token, and what it has grown by is new.
"""

import codecs
from collections.abc import Callable, Container, Sequence
from typing import Protocol

from vllmfront.text._bytelevel import REPLACEMENT

PROMPT_TAILS = (6, 24, 96)
"""Ids of the prompt that a window starts from: the first number that shows whole text."""

LONGEST_HELD = 64
"""Ids after which held text is given up on and released, so that a window stays short."""

Decode = Callable[[list[int]], str]


class Detokenizer(Protocol):
    """Turns one request's generated ids into text; the result does not depend on the chunking."""

    @property
    def pending(self) -> bool:
        """Whether text is held back that a later token may complete."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take ids and return the text that they complete."""

    def feed_one(self, token_id: int) -> str:
        """As ``feed`` with one id."""

    def finish(self) -> str:
        """Return what is still held; incomplete characters become replacement characters."""


class ByteDetokenizer:
    """For byte-level vocabularies: each id stands for fixed bytes."""

    __slots__ = ("_decoder", "_held", "_orphan", "_skipped", "_table")

    def __init__(
        self, table: Sequence[bytes], skipped: Container[int], prompt_token_ids: Sequence[int] = ()
    ) -> None:
        self._table = table
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        # A character that the prompt leaves incomplete has at most three bytes.
        for token_id in prompt_token_ids[-3:]:
            if 0 <= token_id < len(table):
                self._decoder.decode(table[token_id])
        self._orphan = self._decoder.getstate()[0]
        """The bytes of a character that the prompt began, until it is clear what becomes of it."""

    @property
    def pending(self) -> bool:
        return bool(self._held) or bool(self._decoder.getstate()[0])

    def feed_one(self, token_id: int) -> str:
        if token_id in self._skipped or not 0 <= token_id < len(self._table):
            return ""
        text = self._decoder.decode(self._table[token_id])
        if self._orphan and text:
            # A replacement here means that the character was never completed: the prompt's
            # fault, and not part of the answer.
            text = text.removeprefix(REPLACEMENT)
            self._orphan = b""
        if self._held:
            text = self._held + text
            self._held = ""
        if text.endswith(REPLACEMENT) or self._decoder.getstate()[0]:
            self._held = text
            return ""
        return text

    def feed(self, token_ids: Sequence[int]) -> str:
        if len(token_ids) == 1:
            return self.feed_one(token_ids[0])
        return "".join(map(self.feed_one, token_ids))

    def finish(self) -> str:
        untouched = self._orphan and self._decoder.getstate()[0] == self._orphan
        rest = self._held + self._decoder.decode(b"", final=True)
        self._held, self._orphan = "", b""
        return "" if untouched else rest


class WindowDetokenizer:
    """For all other vocabularies: decodes a short window again with the reference decoder.

    The window is ``prefix + fresh``. The prefix holds ids whose text is out already and shows the
    decoder what the fresh ones follow; it moves on when the fresh ones have become text.
    """

    __slots__ = (
        "_decode",
        "_fresh",
        "_orphans",
        "_prefix",
        "_prefix_text",
        "_skipped",
    )

    def __init__(
        self, decode: Decode, skipped: Container[int], prompt_token_ids: Sequence[int] = ()
    ) -> None:
        """Make a detokenizer.

        Args:
            decode: Decodes ids as a whole.
            skipped: Ids that show as nothing.
            prompt_token_ids: What comes before.
        """
        self._decode = decode
        self._skipped = skipped
        self._fresh: list[int] = []
        self._prefix, text = self._seed(prompt_token_ids)
        self._prefix_text = text.rstrip(REPLACEMENT)
        self._orphans = len(text) - len(self._prefix_text)
        """Replacements at the prompt's end: a character that it began and the answer may end."""

    def _seed(self, prompt_token_ids: Sequence[int]) -> tuple[list[int], str]:
        prefix: list[int] = []
        text = ""
        for length in PROMPT_TAILS:
            prefix = list(prompt_token_ids[-length:])
            text = self._decode(prefix) if prefix else ""
            if length >= len(prompt_token_ids) or (text and not text.startswith(REPLACEMENT)):
                break
        return prefix, text

    @property
    def pending(self) -> bool:
        return bool(self._fresh)

    def feed_one(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._fresh.append(token_id)
        text = self._new_text()
        if (not text or text.endswith(REPLACEMENT)) and len(self._fresh) < LONGEST_HELD:
            return ""
        return self._release(text)

    def _new_text(self) -> str:
        text = self._decode(self._prefix + self._fresh)
        if text.startswith(self._prefix_text):
            return text[len(self._prefix_text) :]
        # A broken byte spoils the whole run of bytes that it stands in, including what is out.
        return self._decode(self._fresh)

    def _release(self, text: str) -> str:
        """Move the window on, and return *text* without what the prompt left broken."""
        alone = self._decode(self._fresh)
        if not alone:
            # Nothing visible by itself (a space that a first word loses): the next token would
            # be taken for the first one, so it has to see what came before.
            self._fresh = (self._prefix + self._fresh)[-LONGEST_HELD:]
            alone = self._decode(self._fresh)
        self._prefix, self._prefix_text, self._fresh = self._fresh, alone, []
        text = text.removeprefix(REPLACEMENT * self._orphans)
        self._orphans = 0
        return text

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self.feed_one, token_ids))

    def finish(self) -> str:
        return self._release(self._new_text()) if self._fresh else ""
