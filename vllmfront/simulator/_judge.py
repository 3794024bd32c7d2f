"""What an engine does not survive: it checks little, and trusts its frontend for the rest.

Independent of ``engine.guard`` on purpose: the guard is tested against it.
"""

import math
from collections.abc import Iterator

from vllmfront.engine import EngineRequest, SamplingParams
from vllmfront.engine.wire import Add
from vllmfront.simulator._config import SimulatorConfig

MAX_TEMPERATURE = 2.0
MAX_PENALTY = 2.0


def deafening_fault(params: SamplingParams) -> str | None:
    """Return why an ADD with *params* ends the engine's input thread, or None.

    The thread decodes outside any error handling, and decoding checks these ranges.
    """
    return next(_range_faults(params), None)


def _range_faults(params: SamplingParams) -> Iterator[str]:
    if params.n < 1:
        yield "n"
    if not 0.0 <= params.temperature <= MAX_TEMPERATURE:
        yield "temperature"
    for name in ("presence_penalty", "frequency_penalty"):
        if not -MAX_PENALTY <= getattr(params, name) <= MAX_PENALTY:
            yield name
    if not (math.isfinite(params.repetition_penalty) and params.repetition_penalty > 0):
        yield "repetition_penalty"
    if not 0.0 < params.top_p <= 1.0:
        yield "top_p"
    if params.top_k < -1:
        yield "top_k"
    if not 0.0 <= params.min_p <= 1.0:
        yield "min_p"
    if params.max_tokens < 1:
        yield "max_tokens"
    if not 0 <= params.min_tokens <= params.max_tokens:
        yield "min_tokens"
    if params.stream_interval is not None and params.stream_interval < 1:
        yield "stream_interval"
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and value < -1:
            yield name


def fatal_fault(add: Add, config: SimulatorConfig, in_flight: bool) -> str | None:
    """Return why a request kills the engine core, or None.

    *in_flight* tells whether the core has a request with that id already.
    """
    if in_flight:
        return f"request {add.internal_id} is in flight already"
    return next(_request_faults(add.request, config), None)


def _request_faults(request: EngineRequest, config: SimulatorConfig) -> Iterator[str]:
    prompt, size = request.prompt_token_ids, config.vocab_size
    if not prompt:
        yield "empty prompt"
        return
    if len(prompt) > config.max_model_len:
        yield f"prompt of {len(prompt)} tokens, model length {config.max_model_len}"
    if min(prompt) < 0 or max(prompt) >= size:
        yield "prompt token beyond the vocabulary"
    if request.lora is not None and config.max_loras == 0:
        yield "LoRA is not enabled"
    if request.pooling is not None and request.pooling.task not in config.supported_tasks:
        yield f"unsupported task {request.pooling.task!r}"
    if request.sampling is not None:
        yield from _vocabulary_faults(request.sampling, size)


def _vocabulary_faults(params: SamplingParams, size: int) -> Iterator[str]:
    masked = params.stop_token_ids if params.min_tokens else ()
    for name, ids in (
        ("stop_token_ids", masked),
        ("all_stop_token_ids", params.all_stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("logit_bias", params.logit_bias or ()),
        ("logprob_token_ids", params.logprob_token_ids or ()),
    ):
        if any(not 0 <= token < size for token in ids):
            yield f"{name} beyond the vocabulary"
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and value > size:
            yield f"{name} beyond the vocabulary"
