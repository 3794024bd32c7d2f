"""The fast lane of a streamed choice: text alone, by table."""

from vllmfront.api.openai._choice_text import EscapedText
from vllmfront.api.openai._finish import visible_ids
from vllmfront.api.openai._frames import ChoiceFrames
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._streamed_choice import StreamedChoice
from vllmfront.engine import EngineOutput


class FastChoice(StreamedChoice):
    """A choice of which only text is asked for, from a byte-level vocabulary."""

    __slots__ = (
        "_channel",
        "_head",
        "_held",
        "_include_stop",
        "_plain",
        "_skips_empty",
        "_table",
        "_tail",
        "_text",
    )

    def __init__(
        self,
        answer: StreamedAnswer,
        frames: ChoiceFrames,
        text: EscapedText,
        *,
        include_stop: bool,
    ) -> None:
        super().__init__(answer, frames)
        self._channel = answer.channel
        self._include_stop = include_stop
        self._text = text
        self._table = text.table
        self._head = frames.text_head
        self._tail = frames.text_tail
        self._skips_empty = frames.skips_empty
        self._held: list[int] | None = None
        """Ids that wait for the client to read on; None while it does."""

        self._plain = False
        """Whether the next id's event is its text in the table and nothing else: the stream has
        been opened, nothing is held, and no character is half done."""

    def on_tokens(self, token_ids: list[int]) -> bool:
        if self._plain and len(token_ids) == 1:
            text = self._table[token_ids[0]]
            if text and self._channel.offer(self._head, text, self._tail):
                self.num_tokens += 1
                return False
        return self._take(token_ids)

    def _take(self, token_ids: list[int]) -> bool:
        answer = self._answer
        if answer.closed:
            return True
        self.num_tokens += len(token_ids)
        if self._held is not None:
            self._held += token_ids
        elif answer.congested:
            self._held = token_ids
            self._plain = False
            answer.hold(self)
        else:
            text = self._text.feed(token_ids)
            if self._opening or not text:
                self._send(text)
            else:
                self._plain = self._text.between_characters
                self._channel.offer(self._head, text, self._tail)  # nothing keeps it from going
        return False

    def on_output(self, output: EngineOutput) -> bool:
        self._answer.usage.note(output)
        reason = output.finish_reason
        if reason is None or self._answer.closed:
            return self._take(output.new_token_ids)
        self.num_tokens += len(output.new_token_ids)
        token_ids = visible_ids(output.new_token_ids, reason, include_stop=self._include_stop)
        if self._held is not None:
            token_ids = self._held + token_ids
            self._held = None
        event = self._event(self._text.feed(token_ids) + self._text.finish())
        return self._end(output, reason, self._opening + event)

    def drain(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._send(self._text.feed(held))

    def _send(self, text: bytes) -> None:
        event, self._opening = self._opening + self._event(text), b""
        self._plain = self._text.between_characters
        if event:
            self._answer.write(event)

    def _event(self, text: bytes) -> bytes:
        if not text and self._skips_empty:
            return b""
        return self._head + text + self._tail
