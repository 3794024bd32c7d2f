"""Prompts that end inside the final message, so that the model goes on with it."""

from collections.abc import Sequence

import attrs
from msgspec.structs import replace

from vllmfront.chat._message import Message
from vllmfront.errors import RequestRejected

# Private-use characters: none is part of a tokenizer's marker, and no filter changes them. One
# is enough, so that no template can cut it in two.
_MARKS = range(0xE000, 0xF900)


@attrs.frozen
class Continuation:
    """A conversation whose last text ends in a mark, at which the prompt is cut."""

    messages: Sequence[Message]
    _mark: str
    _text: str
    """The text to go on with."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Continuation":
        """Mark the end of the final message, with a character that no text holds.

        Raises:
            RequestRejected: There is no such character.
        """
        texts = [message.text for message in messages]
        free = (chr(code) for code in _MARKS if not any(chr(code) in text for text in texts))
        mark = next(free, None)
        if mark is None:
            raise RequestRejected("the messages use every private-use character")
        final = messages[-1]
        # The space is lost where the template trims, and tells that it does.
        marked = replace(final, content=f"{final.text}{mark} ")
        return cls([*messages[:-1], marked], mark, final.text)

    def cut(self, prompt: str) -> str:
        """Return *prompt* up to the end of the final message's last appearance.

        Raises:
            RequestRejected: The template did not print the message.
        """
        end = prompt.rfind(self._mark)
        if end < 0:
            raise RequestRejected(
                "continue_final_message is set but the final message does not appear in the"
                " prompt after applying the chat template! This can happen if the chat template"
                " deletes portions of the final message. Final message to continue:"
                f" {self._text.strip()}"
            )
        kept = prompt[:end]
        if not prompt.startswith(" ", end + len(self._mark)):
            kept = self._trimmed(kept)
        return kept.replace(f"{self._mark} ", "").replace(self._mark, "")

    def _trimmed(self, kept: str) -> str:
        """Take off the space at the text's end, as the template would have done."""
        space = self._text[len(self._text.rstrip()) :]
        return kept.removesuffix(space) if space else kept
