"""A tiny model's surroundings for sampling requests."""

from typing import Any

from tests.text._tokenizers import source_of
from vllmfront.engine import SamplingParams
from vllmfront.models import GenerationDefaults
from vllmfront.text import (
    SamplingLimits,
    SamplingRequest,
    Surface,
    check_request,
    check_schema,
    lower_sampling,
    tokenizer_from_json,
)

VOCAB_SIZE = 2048
MAX_MODEL_LEN = 1024
DEFAULTS = GenerationDefaults(temperature=0.6, top_p=0.95, top_k=20, eos_token_ids=(2041, 2039))
TOKENIZER = tokenizer_from_json(
    source_of("byte-level"), vocab_size=VOCAB_SIZE, eos_token="<|im_end|>"
)


def chat(**fields: Any) -> SamplingRequest:
    return SamplingRequest(surface=Surface.CHAT, **{"max_tokens": 3, **fields})


def completion(**fields: Any) -> SamplingRequest:
    return SamplingRequest(surface=Surface.COMPLETION, **{"max_tokens": 3, **fields})


def lower(
    request: SamplingRequest,
    *,
    prompt_length: int = 15,
    defaults: GenerationDefaults = DEFAULTS,
    limits: SamplingLimits | None = None,
) -> SamplingParams:
    """Check and lower a request as a route does."""
    limits = limits or SamplingLimits()
    check_schema(request, limits)
    check_request(request, limits)
    return lower_sampling(
        request,
        defaults=defaults,
        tokenizer=TOKENIZER,
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        prompt_length=prompt_length,
        limits=limits,
    )
