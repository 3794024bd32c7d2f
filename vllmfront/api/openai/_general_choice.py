"""The general lane of a streamed choice: stop strings, metadata, steps of several tokens."""

from collections.abc import Sequence

from msgspec import Struct

from vllmfront.api.openai._choice_text import ChoiceText
from vllmfront.api.openai._finish import visible_ids
from vllmfront.api.openai._frames import ChoiceFrames
from vllmfront.api.openai._logprobs import LogprobsWriter, first_rows
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._streamed_choice import StreamedChoice
from vllmfront.api.openai._usage import usage_json
from vllmfront.engine import EngineOutput, Logprobs


class Extras(Struct, kw_only=True, frozen=True):
    """What the events of a choice carry besides text, and when."""

    logprobs: LogprobsWriter | None = None
    token_ids: bool = False
    running_usage: int | None = None
    """Prompt tokens that the usage in every event counts; None: there is none."""

    interval: int = 1
    """Ids that make an event, after the first."""

    shown_before: int = 0
    """Characters of the prompt that the opening shows; offsets in logprobs count them."""

    @property
    def fills_events(self) -> bool:
        """Whether events are worth sending without text: usage alone can wait for the next."""
        return self.logprobs is not None or self.token_ids

    @property
    def none(self) -> bool:
        """Whether events carry text alone, at once."""
        return (
            self.logprobs is None
            and not self.token_ids
            and self.running_usage is None
            and self.interval == 1
        )


class GeneralChoice(StreamedChoice):
    """A choice with stop strings, metadata, coarser steps, or any vocabulary."""

    __slots__ = (
        "_extras",
        "_first",
        "_held",
        "_ids",
        "_include_stop",
        "_logprobs",
        "_shown_characters",
        "_text",
        "_texts",
    )

    def __init__(
        self,
        answer: StreamedAnswer,
        frames: ChoiceFrames,
        text: ChoiceText,
        extras: Extras,
        *,
        include_stop: bool,
    ) -> None:
        super().__init__(answer, frames)
        self._include_stop = include_stop
        self._text = text
        self._extras = extras
        self._first = True
        self._held = False
        """Whether the answer knows that we wait for the client."""

        self._shown_characters = extras.shown_before
        # The update that is being collected:
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[Logprobs] = []

    def on_tokens(self, token_ids: list[int]) -> bool:
        return self._take(token_ids, None)

    def on_output(self, output: EngineOutput) -> bool:
        self._answer.usage.note(output)
        reason = output.finish_reason
        if reason is None or self._answer.closed:
            return self._take(output.new_token_ids, output.logprobs)
        visible = visible_ids(output.new_token_ids, reason, include_stop=self._include_stop)
        self._collect(visible, output.logprobs, rest=output.new_token_ids[len(visible) :])
        if self._text.match is not None:
            return self._end_at_stop_string()
        self._texts.append(self._text.finish())
        return self._end(output, reason, self._flush(), self._usage())

    def drain(self) -> None:
        self._held = False
        events = self._flush()
        if events:
            self._answer.write(events)

    def _take(self, token_ids: list[int], logprobs: Logprobs | None) -> bool:
        answer = self._answer
        if answer.closed:
            return True
        self._collect(token_ids, logprobs)
        if self._text.match is not None:
            return self._end_at_stop_string()
        if self._held or not (self._first or len(self._ids) >= self._extras.interval):
            return False
        if answer.congested:
            self._held = True
            answer.hold(self)
        elif events := self._flush():
            answer.write(events)
        return False

    def _collect(
        self, token_ids: list[int], logprobs: Logprobs | None, rest: Sequence[int] = ()
    ) -> None:
        """Add one engine update; *rest* are ids without text, and come last."""
        text, used = self._text.feed(token_ids)
        ended = self._text.match is not None
        counted = token_ids[:used] if ended else [*token_ids, *rest]
        self.num_tokens += len(counted)
        self._ids += counted
        self._texts.append(text)
        if logprobs is not None:
            self._logprobs.append(first_rows(logprobs, len(counted)) if ended else logprobs)

    def _flush(self) -> bytes:
        """Return the events of what was collected, and begin anew."""
        events, self._opening = self._opening, b""
        extras = self._extras
        text = "".join(self._texts)
        shows = text or extras.fills_events or not self._frames.skips_empty
        if shows:
            logprobs = None
            if extras.logprobs is not None and self._logprobs:
                logprobs = extras.logprobs.write(self._logprobs, self._shown_characters)
            events += self._frames.delta(
                text,
                logprobs=logprobs,
                token_ids=self._ids if extras.token_ids else None,
                usage=self._usage(),
            )
        self._first = False
        self._shown_characters += len(text)
        self._texts, self._ids, self._logprobs = [], [], []
        return events

    def _usage(self) -> bytes | None:
        prompt_tokens = self._extras.running_usage
        return None if prompt_tokens is None else usage_json(prompt_tokens, self.num_tokens)

    def _end_at_stop_string(self) -> bool:
        match = self._text.match
        assert match is not None
        return self._end_well("stop", match.stop, self._flush(), self._usage())
