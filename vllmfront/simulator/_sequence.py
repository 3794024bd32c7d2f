"""One request inside a simulated engine."""

from collections import deque
from collections.abc import Sequence as Series

import attrs

from vllmfront.engine import (
    EngineRequest,
    FinishReason,
    PrefillStats,
    RepetitionDetection,
    SamplingParams,
)
from vllmfront.simulator._sampling import Sampler
from vllmfront.simulator._script import Act

REPETITION_STOP_REASON = "repetition_detected"


@attrs.define(eq=False, kw_only=True)
class Sequence:
    """A request's growing history; the scheduler owns it and all its fields."""

    request_id: str
    """The engine's id, unlike the client's own in ``request``."""

    request: EngineRequest
    client: int
    nth: int
    """The number of the request in order of arrival, from 0."""

    salt: int
    """Tells prompts apart that must not share cached blocks."""

    params: SamplingParams
    sampler: Sampler
    origin: int
    """The token source's state before the prompt: the weights that it is computed with."""

    state: int
    """The token source's state after the prompt and the output so far."""

    output: list[int] = attrs.field(factory=list)
    events: list[tuple[int, float]] = attrs.field(factory=list)
    prefill_stats: PrefillStats | None = None
    """Not yet told, or None."""

    computed: bool = False
    """Whether the prompt went through the model since the request was last scheduled."""

    told_prompt_logprobs: bool = False
    said: deque[int] = attrs.field(factory=deque)
    """Scripted tokens still to come."""

    acts: deque[Act] | None = None
    """Scripted acts still to come; None where the token source speaks."""

    not_before: float = 0.0
    """When the next act is due."""

    silent: bool = False

    @property
    def length(self) -> int:
        """Tokens of the prompt and the output."""
        return len(self.request.prompt_token_ids) + len(self.output)

    @property
    def reads_prefix_cache(self) -> bool:
        skip = self.params.skip_reading_prefix_cache
        return not (skip if skip is not None else self.params.prompt_logprobs is not None)

    def finish_reason(self, max_model_len: int) -> tuple[FinishReason | None, int | str | None]:
        """Return why the request ends after its last token, and the stop reason, or Nones."""
        params, last = self.params, self.output[-1]
        if last == params.eos_token_id:
            return FinishReason.STOP, None
        if last in params.stop_token_ids:
            return FinishReason.STOP, last
        if len(self.output) >= params.max_tokens or self.length >= max_model_len:
            return FinishReason.LENGTH, None
        if (
            params.repetition_detection is not None
            and len(self.output) >= params.min_tokens
            and repeats(self.output, params.repetition_detection)
        ):
            return FinishReason.REPETITION, REPETITION_STOP_REASON
        return None, None


def repeats(tokens: Series[int], detection: RepetitionDetection) -> bool:
    """Tell whether *tokens* end in a pattern, said as often as *detection* allows."""
    count = detection.min_count
    if count < 2:  # noqa: PLR2004
        return False
    for size in range(max(1, detection.min_pattern_size), detection.max_pattern_size + 1):
        if size * count > len(tokens):
            return False
        tail = list(tokens[-size * count :])
        if tail == tail[-size:] * count:
            return True
    return False
