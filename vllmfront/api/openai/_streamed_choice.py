"""Output pipelines of streamed choices: what an engine says, as events, at once.

Two lanes lead to the same bytes. The fast one serves what nearly all requests ask for, text and
nothing else, from a byte-level vocabulary: a table lookup and three joined byte strings a token.
The general one does everything else. Tool and reasoning parsers will stand between its text and
its frames, where an update is text, ids and logprobs of one step.

Both hold back while the client does not read, and then send one merged event: a slow client costs
bounded memory.
"""

from vllmfront.api.openai._finish import FINISH_NAMES
from vllmfront.api.openai._frames import ChoiceFrames
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.engine import EngineOutput, FinishReason
from vllmfront.errors import VllmFrontError


class StreamedChoice:
    """What all lanes do at the beginning and at the end."""

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
        final = self._frames.final(reason, stop_reason, usage, self.weight_versions())
        self._answer.finish_choice(events + final)
        return True

    def weight_versions(self) -> bytes | None:
        """Return which weights made which tokens, as JSON; None: nobody has asked."""
        return None
