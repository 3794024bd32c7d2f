"""Output pipelines of streamed choices: what an engine says, as events, at once.

Two lanes lead to the same bytes. The fast one serves what nearly all requests ask for, text and
nothing else, from a byte-level vocabulary: a table lookup and three joined byte strings a token.
The general one does everything else. Tool and reasoning parsers will stand between its text and
its frames, where an update is text, ids and logprobs of one step.

Both hold back while the client does not read, and then send one merged event: a slow client costs
bounded memory.
"""

from collections.abc import Callable, Sequence

import attrs

from vllmfront.api.openai._choice_text import ChoiceText, EscapedText
from vllmfront.api.openai._finish import FINISH_NAMES, visible_ids
from vllmfront.api.openai._frames import ChoiceFrames
from vllmfront.api.openai._logprobs import LogprobsWriter, first_rows
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._usage import usage_json
from vllmfront.engine import EngineOutput, FinishReason, Logprobs
from vllmfront.errors import VllmFrontError


class _StreamedChoice:
    """What both lanes do at the beginning and at the end."""

    __slots__ = ("_answer", "_frames", "_opening", "num_tokens")

    def __init__(self, answer: StreamedAnswer, frames: ChoiceFrames) -> None:
        self._answer = answer
        self._frames = frames
        self._opening = frames.opening
        """Goes before the first event, and is empty then."""

        self.num_tokens = 0

    def on_error(self, error: VllmFrontError) -> None:
        self._answer.usage.completion_tokens += self.num_tokens
        self._answer.fail(error)

    def _note(self, output: EngineOutput) -> None:
        usage = self._answer.usage
        if output.prefill_stats is not None and usage.cached_tokens is not None:
            usage.cached_tokens += output.prefill_stats.num_cached_tokens

    def _end(
        self, output: EngineOutput, reason: FinishReason, events: bytes, usage: bytes | None = None
    ) -> bool:
        """End the choice; an error is left to the request's task, which is told of it."""
        name = FINISH_NAMES.get(reason)
        if name is None:
            self._answer.usage.completion_tokens += self.num_tokens
            if events:
                self._answer.write(events)
            return True
        return self._end_well(name, output.stop_reason, events, usage)

    def _end_well(
        self,
        reason: str,
        stop_reason: int | str | None,
        events: bytes,
        usage: bytes | None = None,
    ) -> bool:
        self._answer.usage.completion_tokens += self.num_tokens
        self._answer.finish_choice(events + self._frames.final(reason, stop_reason, usage))
        return True


class FastChoice(_StreamedChoice):
    """A choice of which only text is asked for, from a byte-level vocabulary."""

    __slots__ = ("_escape", "_head", "_held", "_include_stop", "_skips_empty", "_tail", "_text")

    def __init__(
        self,
        answer: StreamedAnswer,
        frames: ChoiceFrames,
        text: EscapedText,
        *,
        include_stop: bool,
    ) -> None:
        super().__init__(answer, frames)
        self._include_stop = include_stop
        self._text = text
        self._escape = text.feed
        self._head = frames.text_head
        self._tail = frames.text_tail
        self._skips_empty = frames.skips_empty
        self._held: list[int] | None = None
        """Ids that wait for the client to read on; None while it does."""

    def on_tokens(self, token_ids: list[int]) -> bool:
        answer = self._answer
        if answer.closed:
            return True
        self.num_tokens += len(token_ids)
        if self._held is not None:
            self._held += token_ids
        elif answer.congested:
            self._held = token_ids
            answer.hold(self)
        else:
            text = self._escape(token_ids)
            if self._opening or not text:
                self._send(text)
            else:
                answer.write(self._head + text + self._tail)
        return False

    def on_output(self, output: EngineOutput) -> bool:
        self._note(output)
        reason = output.finish_reason
        if reason is None or self._answer.closed:
            return self.on_tokens(output.new_token_ids)
        self.num_tokens += len(output.new_token_ids)
        token_ids = visible_ids(output.new_token_ids, reason, include_stop=self._include_stop)
        if self._held is not None:
            token_ids = self._held + token_ids
            self._held = None
        event = self._event(self._escape(token_ids) + self._text.finish())
        return self._end(output, reason, self._opening + event)

    def drain(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._send(self._escape(held))

    def _send(self, text: bytes) -> None:
        event, self._opening = self._opening + self._event(text), b""
        if event:
            self._answer.write(event)

    def _event(self, text: bytes) -> bytes:
        if not text and self._skips_empty:
            return b""
        return self._head + text + self._tail


@attrs.frozen(kw_only=True)
class Extras:
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
    def any_metadata(self) -> bool:
        return self.logprobs is not None or self.token_ids or self.running_usage is not None

    @property
    def none(self) -> bool:
        """Whether events carry text alone, at once."""
        return not self.any_metadata and self.interval == 1


class GeneralChoice(_StreamedChoice):
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
        self._note(output)
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
        shows = text or extras.any_metadata or not self._frames.skips_empty
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


class EchoChoice(_StreamedChoice):
    """A choice that shows its prompt and nothing else: ``max_tokens: 0`` with ``echo``.

    The engine makes one token all the same, which is counted and not shown.
    """

    __slots__ = ("_open", "_prompt_logprobs")

    def __init__(
        self,
        answer: StreamedAnswer,
        frames: ChoiceFrames,
        opening: Callable[[Logprobs | None], bytes],
    ) -> None:
        """Make a pipeline; *opening* makes the event from the prompt's log probabilities."""
        super().__init__(answer, frames)
        self._open = opening
        self._prompt_logprobs: Logprobs | None = None

    def on_tokens(self, token_ids: list[int]) -> bool:
        self.num_tokens += len(token_ids)
        return self._answer.closed

    def on_output(self, output: EngineOutput) -> bool:
        self._note(output)
        self.num_tokens += len(output.new_token_ids)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        if output.finish_reason is None or self._answer.closed:
            return self._answer.closed
        return self._end(output, output.finish_reason, self._open(self._prompt_logprobs))
