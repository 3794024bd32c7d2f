"""What clients may ask of sampling, in their own words, and what an operator allows."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from vllmfront.engine import STRUCTURED_BACKENDS, RepetitionDetection
from vllmfront.environment import whole_number
from vllmfront.errors import ConfigurationError


class Surface(enum.Enum):
    """The kind of route that a request came by; they differ in defaults and in wording."""

    CHAT = enum.auto()
    COMPLETION = enum.auto()


@attrs.frozen(kw_only=True)
class SamplingRequest:
    """Lengths, sampling, stop, logprobs and constraints of one request; None means unset.

    Fields have the names and the meaning that they have for clients of the surface: chat asks
    for logprobs with a boolean and counts them in ``top_logprobs``, completions count them in
    ``logprobs``.
    """

    surface: Surface
    stream: bool = False
    echo: bool = False

    # lengths
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None

    # sampling
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[str, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    """Not read from completions, which ignore it."""

    repetition_detection: RepetitionDetection | None = None
    watermarking: bool | None = None
    thinking_token_budget: int | None = None

    # stop
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    # logprobs
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None

    # constraints, as decoded JSON
    structured_outputs: Any = None
    response_format: Mapping[str, Any] | None = None

    # passed to the engine
    stream_interval: int | None = None
    vllm_xargs: Mapping[str, Any] | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    ec_transfer_params: Mapping[str, Any] | None = None

    @property
    def stop_strings(self) -> Sequence[str]:
        """``stop`` as a list."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else self.stop


@attrs.frozen(kw_only=True)
class SamplingLimits:
    """What an operator allows; made once, from flags and environment."""

    max_logprobs: int = 20
    """-1 allows as many as the vocabulary has."""

    max_stop_strings: int = 4
    max_bad_words: int = 128
    """Counted after tokenizing, where one word may become two."""

    max_bad_word_tokens: int = 1024
    max_choices: int = 16384
    structured_backend: str = "xgrammar"

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str],
        *,
        max_logprobs: int = 20,
        structured_backend: str = "xgrammar",
    ) -> "SamplingLimits":
        """Read the limits that are set by environment variables.

        Raises:
            ConfigurationError: A value is out of range; its name is given.
        """
        if max_logprobs < -1:
            raise ConfigurationError(f"--max-logprobs must be at least -1, got {max_logprobs}.")
        if structured_backend == "auto":
            structured_backend = "xgrammar"
        if structured_backend not in STRUCTURED_BACKENDS:
            raise ConfigurationError(
                f"--structured-outputs-config: backend must be one of auto,"
                f" {', '.join(STRUCTURED_BACKENDS)}, got {structured_backend!r}."
            )
        return cls(
            max_logprobs=max_logprobs,
            max_stop_strings=whole_number(environ, "VLLM_MAX_STOP_STRINGS", 4, low=1),
            max_bad_words=whole_number(environ, "VLLM_MAX_NUM_BAD_WORDS", 128, low=1),
            max_bad_word_tokens=whole_number(
                environ, "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS", 1024, low=1
            ),
            max_choices=whole_number(environ, "VLLM_MAX_N_SEQUENCES", 16384, low=1),
            structured_backend=structured_backend,
        )
