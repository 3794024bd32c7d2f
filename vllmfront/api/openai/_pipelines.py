"""Choosing and making the output pipeline of each choice."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from vllmfront.api.openai._choice_text import ChoiceText, EscapedText
from vllmfront.api.openai._fast_choice import FastChoice
from vllmfront.api.openai._frames import ChoiceFrames
from vllmfront.api.openai._general_choice import Extras, GeneralChoice
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._usage import Usage
from vllmfront.api.openai._weight_versions import (
    VersionedChoice,
    VersionedWholeChoice,
    VersionSpans,
)
from vllmfront.api.openai._whole_choice import WholeChoice
from vllmfront.engine import OutputSink
from vllmfront.text import SamplingRequest, StopMatcher, Tokenizer


class Pipelines(Struct, frozen=True):
    """Makes the pipelines of one request; each choice has its own state."""

    tokenizer: Tokenizer
    sampling: SamplingRequest
    weight_versions: bool = False
    """Whether answers tell which weights made them."""

    @property
    def skip_special_tokens(self) -> bool:
        return self.sampling.skip_special_tokens is not False

    @property
    def include_stop(self) -> bool:
        return bool(self.sampling.include_stop_str_in_output)

    def streamed(
        self,
        answer: StreamedAnswer,
        frames: ChoiceFrames,
        prompt_token_ids: Sequence[int],
        extras: Extras,
    ) -> OutputSink:
        """Return the pipeline of one streamed choice: the fast lane where it will do."""
        if self.weight_versions:
            return VersionedChoice(
                answer,
                frames,
                self._choice_text(prompt_token_ids),
                extras,
                include_stop=self.include_stop,
            )
        include_stop, skips = self.include_stop, self.skip_special_tokens
        table = self.tokenizer.json_table(skips)
        if table is None or self.sampling.stop_strings or not extras.none:
            text = self._choice_text(prompt_token_ids)
            return GeneralChoice(answer, frames, text, extras, include_stop=include_stop)
        escaped = EscapedText(self.tokenizer, table, prompt_token_ids, skip_special_tokens=skips)
        return FastChoice(answer, frames, escaped, include_stop=include_stop)

    def whole(self, usage: Usage, prompt_token_ids: Sequence[int]) -> WholeChoice:
        """Return the pipeline of one choice of a whole answer."""
        matching = self._choice_text(prompt_token_ids) if self.sampling.stop_strings else None
        kind = VersionedWholeChoice if self.weight_versions else WholeChoice
        choice = kind(
            usage,
            self._whole_text(prompt_token_ids),
            include_stop=self.include_stop,
            matching=matching,
        )
        if isinstance(choice, VersionedWholeChoice):
            choice.spans = VersionSpans()
        return choice

    def _whole_text(
        self, prompt_token_ids: Sequence[int]
    ) -> Callable[[], EscapedText | ChoiceText]:
        table = self.tokenizer.json_table(self.skip_special_tokens)
        if table is None:
            return lambda: self._choice_text(prompt_token_ids)
        return lambda: EscapedText(
            self.tokenizer, table, prompt_token_ids, skip_special_tokens=self.skip_special_tokens
        )

    def _choice_text(self, prompt_token_ids: Sequence[int]) -> ChoiceText:
        sampling = self.sampling
        matcher = None
        if sampling.stop_strings:
            matcher = StopMatcher(
                sampling.stop_strings,
                min_tokens=sampling.min_tokens or 0,
                include_stop=self.include_stop,
            )
        detokenizer = self.tokenizer.detokenizer(
            prompt_token_ids, skip_special_tokens=self.skip_special_tokens
        )
        return ChoiceText(detokenizer, matcher)
