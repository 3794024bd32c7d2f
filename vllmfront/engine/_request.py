"""What a frontend asks of an engine; the wire form is made in ``engine.wire`` alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

STRUCTURED_BACKENDS = ("xgrammar", "guidance", "outlines", "lm-format-enforcer")
"""What compiles constraints in an engine, which keeps that of its first constrained request: so
``auto`` is not one."""

GREEDY_BELOW = 1e-5
"""Temperatures below this make engines choose the likeliest token."""


class RepetitionDetection(Struct, kw_only=True, frozen=True):
    """When the engine ends a request because its tail repeats itself."""

    max_pattern_size: int
    min_pattern_size: int = 0
    min_count: int = 0


class StructuredOutputs(Struct, kw_only=True, frozen=True):
    """A constraint on the generated text; exactly one of the first six is set."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    backend: str = "xgrammar"


class SamplingParams(Struct, kw_only=True, frozen=True):
    """Sampling as the engine understands it: all defaults resolved, all text lowered to ids.

    Ranges are those of the engine (see ``engine.guard``); floats are sent as given, so callers
    that want the peer's 32-bit values round them first.
    """

    n: int = 1
    """Choices; the client fans a request out into this many engine requests."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    eos_token_id: int | None = None
    """The id that ends a request as EOS; None where EOS is ignored."""

    all_stop_token_ids: Sequence[int] = ()
    """EOS ids and stop ids: masked until ``min_tokens``, told to grammars. Sorted."""

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words_token_ids: Sequence[Sequence[int]] | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    watermarking: bool = True
    stream_interval: int | None = None
    skip_reading_prefix_cache: bool | None = None
    prompt_logprob_token_ids: Any = None
    """A ``wire.Tensor`` of int32, ``[rows, ids]``, -1 pads; or None."""

    prompt_logprob_start: int | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: Sequence[int] | None = None
    extra_args: Mapping[str, Any] | None = None
    """Carries ``kv_transfer_params``, ``ec_transfer_params`` and ``vllm_xargs``."""


class LoraRequest(Struct, kw_only=True, frozen=True):
    """An adapter that the engine has loaded, or can load from ``path``."""

    name: str
    int_id: int
    path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class PoolingParams(Struct, kw_only=True, frozen=True):
    """Parameters of a pooling request, in wire order."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: Sequence[int] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: Sequence[Any] | None = None
    extra_kwargs: Mapping[str, Any] | None = None
    output_kind: int = 2
    late_chunking_params: Sequence[Any] | None = None


class EngineRequest(Struct, kw_only=True, frozen=True):
    """One generation or pooling request, before the client gives it an engine and an id."""

    request_id: str
    """The public id, for example ``chatcmpl-3f2a9c01``; the client makes it unique."""

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams | None = None
    pooling: PoolingParams | None = None
    arrival_time: float = 0.0
    """Wall clock, in seconds since the epoch."""

    lora: LoraRequest | None = None
    cache_salt: str | None = None
    data_parallel_rank: int | None = None
    """Pins the request to that engine rank; it waits for that one alone."""

    priority: int = 0
    trace_headers: Mapping[str, str] | None = None
    session_id: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: Mapping[str, Any] | None = None
    mm_features: Sequence[Any] | None = None
    prompt_embeds: Any = None
    """A ``wire.Tensor``, or None."""

    prompt_is_token_ids: Sequence[bool] | None = None
    resumable: bool = False
    abort_immediately: bool = False
    kv_hints: Mapping[str, Any] | None = None
    deadline: float | None = None
    """When to end it with ``RequestTimedOut``, by ``trio.current_time()``, whether it runs by
    then or still waits for an engine; None lets it take its time. Not sent to the engine."""
