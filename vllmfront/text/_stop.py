"""Stop strings: where a text ends, and how much of it may go out before that is known."""

from collections.abc import Sequence

import attrs

_CONTINUATION_MASK, _CONTINUATION = 0b1100_0000, 0b1000_0000
"""How UTF-8 marks the bytes of a character after its first one."""


@attrs.frozen
class StopMatch:
    """The stop string that ended a text."""

    stop: str
    index: int
    """Its place in the list of stop strings."""


@attrs.define(init=False)
class StopMatcher:
    """Looks for stop strings in one choice's text, token by token. Pure.

    Each ``feed`` is one token. Only text that this token adds can complete a match, which may begin
    in earlier text; of several strings completed by one token the first of the list wins. Until
    more than ``min_tokens`` tokens exist nothing matches, and what was passed over then never does.

    While a match may still come, the last bytes are held back: one less than the longest stop
    string has, and never part of a character. Nothing is held when the stop string is to be
    included, because then no text is ever taken back.
    """

    _stops: tuple[str, ...]
    _min_tokens: int
    _include: bool
    _hold_bytes: int
    _overlap: int
    _tail: str
    """The last characters seen, enough for the longest match to begin in."""
    _pending: str
    """Text not yet taken."""
    _tokens: int
    _matched: bool

    def __init__(
        self, stops: Sequence[str], *, min_tokens: int = 0, include_stop: bool = False
    ) -> None:
        """Make a matcher for *stops*, none of them empty."""
        self._stops = tuple(stops)
        self._min_tokens = min_tokens
        self._include = include_stop
        longest = max((len(stop.encode()) for stop in stops), default=1)
        self._hold_bytes = 0 if include_stop else longest - 1
        self._overlap = max((len(stop) for stop in stops), default=1) - 1
        self._tail = ""
        self._pending = ""
        self._tokens = 0
        self._matched = False

    def feed(self, text: str) -> StopMatch | None:
        """Take the text that one token adds; it may be empty.

        Returns:
            The match that this token completes. The text that ``take`` then returns is cut before
            it (after it when it is to be included), possibly inside the token; nothing may be
            fed any more.
        """
        assert not self._matched, "the text has ended"
        self._tokens += 1
        if not text:
            return None
        window = self._tail + text
        if self._tokens > self._min_tokens:
            for index, stop in enumerate(self._stops):
                # A match must end in the new text.
                start = window.find(stop, max(0, len(self._tail) - len(stop) + 1))
                if start >= 0:
                    self._cut(text, window, start + len(stop) if self._include else start)
                    return StopMatch(stop, index)
        self._pending += text
        self._tail = window[-self._overlap :] if self._overlap else ""
        return None

    def _cut(self, text: str, window: str, end: int) -> None:
        """End the text at *end* of *window*, which is a tail of all text."""
        surplus = len(window) - end
        whole = self._pending + text
        self._pending = whole[: len(whole) - surplus]
        self._hold_bytes = 0
        self._matched = True

    def take(self) -> str:
        """Return the text that can no longer become part of a stop string, once."""
        pending = self._pending
        if not self._hold_bytes:
            self._pending = ""
            return pending
        cut = len(pending) - self._held_characters(pending)
        self._pending = pending[cut:]
        return pending[:cut]

    def _held_characters(self, pending: str) -> int:
        """Count the characters that the held bytes reach into."""
        if pending.isascii():
            return min(self._hold_bytes, len(pending))
        # In bytes, because a walk over characters would cost each token a long stop string.
        encoded = pending.encode()
        cut = max(0, len(encoded) - self._hold_bytes)
        while encoded[cut] & _CONTINUATION_MASK == _CONTINUATION:
            cut -= 1
        return len(encoded[cut:].decode())

    def finish(self) -> str:
        """Return all that is left: no match came."""
        rest, self._pending = self._pending, ""
        return rest
