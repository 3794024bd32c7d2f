"""Which weights made which tokens of a choice, for requests that ask for it.

Only those have these pipelines; the others know nothing of weights.
"""

import msgspec

from vllmfront.api.openai._choice_text import ChoiceText
from vllmfront.api.openai._frames import ChoiceFrames
from vllmfront.api.openai._general_choice import Extras, GeneralChoice
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._whole_choice import WholeChoice
from vllmfront.engine import EngineOutput

_encode = msgspec.json.encode


class VersionSpans:
    """Where in a choice's tokens each version of the weights begins."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        self._starts: list[tuple[str, int]] = []

    def note(self, version: str | None, num_tokens: int) -> None:
        """Take note that *version* makes what follows the first *num_tokens*."""
        if version is None:
            return
        starts = self._starts
        if starts and starts[-1][1] == num_tokens:
            starts.pop()  # it made nothing
        if not starts or starts[-1][0] != version:
            starts.append((version, num_tokens))

    def json(self, num_tokens: int) -> bytes:
        """Return ``[{"version": ..., "start": ..., "end": ...}]`` of *num_tokens*.

        ``null`` where the engine has not said what made them.
        """
        starts = [(version, start) for version, start in self._starts if start < num_tokens]
        if not starts and num_tokens:
            return b"null"
        ends = [*(start for _, start in starts[1:]), num_tokens]
        return _encode(
            [
                {"version": version, "start": start, "end": end}
                for (version, start), end in zip(starts, ends, strict=False)
            ]
        )


class VersionedChoice(GeneralChoice):
    """A streamed choice whose last event tells the versions."""

    __slots__ = ("_spans",)

    def __init__(
        self,
        answer: StreamedAnswer,
        frames: ChoiceFrames,
        text: ChoiceText,
        extras: Extras,
        *,
        include_stop: bool,
    ) -> None:
        super().__init__(answer, frames, text, extras, include_stop=include_stop)
        self._spans = VersionSpans()

    def on_weights(self, version: str) -> None:
        """Take note of other weights; see ``OutputSink``."""
        self._spans.note(version, self.num_tokens)

    def on_output(self, output: EngineOutput) -> bool:
        if output.new_token_ids:
            self._spans.note(output.weight_version, self.num_tokens)
        return super().on_output(output)

    def weight_versions(self) -> bytes | None:
        return self._spans.json(self.num_tokens)


class VersionedWholeChoice(WholeChoice):
    """A choice of a whole answer that tells the versions."""

    __slots__ = ("spans",)

    spans: VersionSpans
    """Set by who makes it."""

    def on_weights(self, version: str) -> None:
        """Take note of other weights; see ``OutputSink``."""
        self.spans.note(version, len(self.token_ids))

    def on_output(self, output: EngineOutput) -> bool:
        if output.new_token_ids:
            self.spans.note(output.weight_version, len(self.token_ids))
        return super().on_output(output)

    def weight_versions(self) -> bytes | None:
        return self.spans.json(len(self.token_ids))
