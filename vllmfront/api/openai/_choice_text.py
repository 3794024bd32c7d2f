"""One choice's tokens into visible text, in two ways that lead to the same."""

from collections.abc import Sequence

from vllmfront.text import Detokenizer, StopMatch, StopMatcher, Tokenizer, json_escape


class ChoiceText:
    """Detokenizer, then stop strings. What it returns does not depend on how ids are grouped."""

    __slots__ = ("_detokenizer", "_matcher", "match")

    def __init__(self, detokenizer: Detokenizer, matcher: StopMatcher | None) -> None:
        self._detokenizer = detokenizer
        self._matcher = matcher
        self.match: StopMatch | None = None
        """The stop string that ended the text; nothing may be fed after it."""

    def feed(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Take new ids.

        Returns:
            The text that may be shown now, and how many of the ids belong to the choice: all,
            or those up to the one that completed a stop string.
        """
        matcher = self._matcher
        if matcher is None:
            return self._detokenizer.feed(token_ids), len(token_ids)
        for used, token_id in enumerate(token_ids, 1):
            self.match = matcher.feed(self._detokenizer.feed_one(token_id))
            if self.match is not None:
                return matcher.take(), used
        return matcher.take(), len(token_ids)

    def finish(self) -> str:
        """Return what was held back, once no more ids come."""
        if self.match is not None:
            return ""
        rest = self._detokenizer.finish()
        matcher = self._matcher
        return rest if matcher is None else matcher.finish() + rest


class EscapedText:
    """Table lookups where each id has a text of its own, a detokenizer in between.

    For byte-level vocabularies, without stop strings. All text is the inside of JSON strings.
    """

    __slots__ = ("_detokenizer", "_skips", "_tokenizer", "between_characters", "table")

    def __init__(
        self,
        tokenizer: Tokenizer,
        table: Sequence[bytes | None],
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
    ) -> None:
        self.table = table
        """The text of each id, None where an id has none of its own."""

        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._detokenizer: Detokenizer | None = None
        self.between_characters = True
        """Whether the table is right for the next id."""

        if not prompt_token_ids or table[prompt_token_ids[-1]] is None:
            self._detokenizer = self._new_detokenizer(prompt_token_ids)
            self.between_characters = not self._detokenizer.pending

    def _new_detokenizer(self, prompt_token_ids: Sequence[int]) -> Detokenizer:
        return self._tokenizer.detokenizer(prompt_token_ids, skip_special_tokens=self._skips)

    def feed(self, token_ids: Sequence[int]) -> bytes:
        """Take new ids and return the text that they complete."""
        if self.between_characters:
            if len(token_ids) == 1:
                piece = self.table[token_ids[0]]
                if piece is not None:
                    return piece
            pieces = [self.table[token_id] for token_id in token_ids]
            if None not in pieces:
                return b"".join(pieces)  # type: ignore[arg-type] # None was ruled out
        if self._detokenizer is None:
            self._detokenizer = self._new_detokenizer(())
        text = self._detokenizer.feed(token_ids)
        self.between_characters = not self._detokenizer.pending
        return json_escape(text)

    def finish(self) -> bytes:
        """Return what was held back, once no more ids come."""
        if self.between_characters or self._detokenizer is None:
            return b""
        return json_escape(self._detokenizer.finish())
