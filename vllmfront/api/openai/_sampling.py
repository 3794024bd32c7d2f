"""Request bodies to the text layer's sampling requests."""

from typing import Any

from vllmfront.api.openai._chat_request import ChatCompletionRequest
from vllmfront.api.openai._completion_request import CompletionRequest
from vllmfront.api.openai._fields import GenerationFields
from vllmfront.engine import RepetitionDetection
from vllmfront.text import SamplingRequest, Surface

_SHARED = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "logit_bias",
        "allowed_token_ids",
        "watermarking",
        "thinking_token_budget",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "structured_outputs",
        "response_format",
        "vllm_xargs",
        "kv_transfer_params",
        "ec_transfer_params",
    }
)
_CHAT = _SHARED | {"max_completion_tokens", "bad_words", "top_logprobs"}


def sampling_of_chat(body: ChatCompletionRequest, default_interval: int) -> SamplingRequest:
    """Return what *body* asks of sampling; *default_interval* is the server's."""
    return _sampling(body, Surface.CHAT, _CHAT, default_interval)


def sampling_of_completion(body: CompletionRequest, default_interval: int) -> SamplingRequest:
    """Return what *body* asks of sampling; *default_interval* is the server's."""
    return _sampling(body, Surface.COMPLETION, _SHARED, default_interval)


def _sampling(
    body: GenerationFields, surface: Surface, names: frozenset[str], default_interval: int
) -> SamplingRequest:
    given: dict[str, Any] = {
        name: value for name, value in vars(body).items() if value is not None and name in names
    }
    repetition = body.repetition_detection
    if repetition is not None:
        given["repetition_detection"] = RepetitionDetection(
            max_pattern_size=repetition.max_pattern_size,
            min_pattern_size=repetition.min_pattern_size or 0,
            min_count=repetition.min_count or 0,
        )
    interval = body.stream_interval
    if interval is None and default_interval > 1:
        interval = default_interval
    return SamplingRequest(
        surface=surface,
        stream=bool(body.stream),
        echo=bool(body.echo),
        stream_interval=interval,
        **given,
    )
