"""A streamed choice that shows its prompt and nothing else."""

from collections.abc import Callable

from vllmfront.api.openai._frames import ChoiceFrames
from vllmfront.api.openai._stream import StreamedAnswer
from vllmfront.api.openai._streamed_choice import StreamedChoice
from vllmfront.engine import EngineOutput, Logprobs


class EchoChoice(StreamedChoice):
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
        self._answer.usage.note(output)
        self.num_tokens += len(output.new_token_ids)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        if output.finish_reason is None or self._answer.closed:
            return self._answer.closed
        return self._end(output, output.finish_reason, self._open(self._prompt_logprobs))
