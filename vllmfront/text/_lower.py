"""From a client's sampling request to the engine's parameters: all defaults, all text resolved.

The rules and their order are the peer's. Where a value is unset the model's generation config
decides, then the neutral value; greedy sampling resets nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vllmfront.engine import RepetitionDetection, SamplingParams, check_choices
from vllmfront.errors import RequestRejected
from vllmfront.models import GenerationDefaults
from vllmfront.text._bad_words import lower_bad_words
from vllmfront.text._check import parse_token_id
from vllmfront.text._constraints import resolve_constraints
from vllmfront.text._json import f32
from vllmfront.text._numbers import resolve_numbers, resolve_top_k
from vllmfront.text._prompt import check_ids
from vllmfront.text._request import SamplingLimits, SamplingRequest, Surface
from vllmfront.text._tokenizer import Tokenizer

_COMPLETION_MAX_TOKENS = 16
_MAX_LOGPROB_IDS = 128
_MAX_BIAS = 100.0


def lower_sampling(
    request: SamplingRequest,
    *,
    defaults: GenerationDefaults,
    tokenizer: Tokenizer,
    vocab_size: int,
    max_model_len: int,
    prompt_length: int,
    limits: SamplingLimits,
) -> SamplingParams:
    """Resolve a request that ``check_request`` has passed, for a prompt that fits.

    Args:
        request: What the client asks for.
        defaults: The model's; ``defaults.neutral()`` where the operator wants none.
        tokenizer: Knows the EOS id, and turns bad words into ids.
        vocab_size: The model's.
        max_model_len: The smallest context length of the engines.
        prompt_length: In ids; less than *max_model_len*.
        limits: What the operator allows.

    Raises:
        RequestRejected: A value is out of range, or two contradict each other.
    """
    logprobs, prompt_logprobs = _logprob_counts(request, vocab_size, limits)
    max_tokens = resolve_max_tokens(request, defaults, max_model_len - prompt_length)
    min_tokens = _min_tokens(request, max_tokens)
    repetition = _repetition_detection(request.repetition_detection)
    budget = _thinking_budget(request.thinking_token_budget)
    numbers = resolve_numbers(request, defaults)
    n = _choices(request, numbers["temperature"])
    stops, eos, all_stops = _stop_ids(request, vocab_size, defaults, tokenizer)
    bias = _logit_bias(request.logit_bias, vocab_size)
    logprob_ids = request.logprob_token_ids or None
    check_ids("logprob_token_ids", logprob_ids or (), vocab_size)
    allowed = _allowed_ids(request.allowed_token_ids, vocab_size)
    return SamplingParams(
        n=n,
        **numbers,
        top_k=resolve_top_k(request, defaults),
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stops,
        eos_token_id=eos,
        all_stop_token_ids=all_stops,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logprob_token_ids=logprob_ids,
        logit_bias=bias,
        allowed_token_ids=allowed,
        bad_words_token_ids=lower_bad_words(request, tokenizer, vocab_size, limits),
        structured_outputs=resolve_constraints(request, limits),
        thinking_token_budget=budget,
        repetition_detection=repetition,
        watermarking=request.watermarking is not False,
        stream_interval=request.stream_interval,
        extra_args=_extra_args(request),
    )


def _logprob_counts(
    request: SamplingRequest, vocab_size: int, limits: SamplingLimits
) -> tuple[int | None, int | None]:
    """Return how many logprobs the engine is to give for answer and prompt."""
    count: int | None
    if request.surface is Surface.CHAT:
        count = (request.top_logprobs or 0) if request.logprobs else None
    else:
        count = None if request.logprobs is None else int(request.logprobs)
    prompt_count = request.prompt_logprobs
    if prompt_count is None and request.echo and not request.stream:
        # An echoed prompt shows its logprobs; chat fills ``prompt_logprobs`` in any case.
        prompt_count = (count or 0) if request.surface is Surface.CHAT else count
    ids = request.logprob_token_ids or ()
    if len(ids) > _MAX_LOGPROB_IDS:
        raise RequestRejected(
            f"requested logprob_token_ids of length {len(ids)}, which is greater than max allowed:"
            f" {_MAX_LOGPROB_IDS}"
        )
    allowed = vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    for name, value in (("logprobs", None if ids else count), ("prompt_logprobs", prompt_count)):
        resolved = vocab_size if value == -1 else value or 0
        if resolved > allowed:
            raise RequestRejected(
                f"requested {name} of {resolved}, which is greater than max allowed: {allowed}"
            )
        if resolved > vocab_size:
            raise RequestRejected(
                f"requested {name} of {resolved}, which is greater than the vocabulary:"
                f" {vocab_size}"
            )
    return None if ids else count, prompt_count


def resolve_max_tokens(request: SamplingRequest, defaults: GenerationDefaults, room: int) -> int:
    """Return how many tokens an answer may have where *room* are left in the context.

    It is all of the outcome of ``lower_sampling`` that depends on the prompt.
    """
    wanted = request.max_completion_tokens
    if wanted is None:
        wanted = request.max_tokens
    if wanted is None and request.surface is Surface.COMPLETION:
        wanted = _COMPLETION_MAX_TOKENS
    if wanted is None:
        wanted = defaults.max_new_tokens
    if defaults.max_tokens_cap is not None:
        room = min(room, defaults.max_tokens_cap)
    # An echo of the prompt alone still needs the engine to be asked for one token.
    return room if wanted is None else min(max(wanted, 1), room)


def _choices(request: SamplingRequest, temperature: float) -> int:
    n = request.n or 1
    check_choices(n, temperature)
    return n


def _min_tokens(request: SamplingRequest, max_tokens: int) -> int:
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise RequestRejected(
            "`min_tokens` must be less than or equal to `max_tokens`,"
            f" got min_tokens={min_tokens}, max_tokens={max_tokens}"
        )
    return min_tokens


def _allowed_ids(allowed: Sequence[int] | None, vocab_size: int) -> Sequence[int] | None:
    if allowed is not None:
        if not allowed:
            raise RequestRejected("allowed_token_ids should not be empty")
        check_ids("allowed_token_ids", allowed, vocab_size)
    return allowed


def _repetition_detection(wanted: RepetitionDetection | None) -> RepetitionDetection | None:
    if wanted is None:
        return None
    if wanted.min_pattern_size > wanted.max_pattern_size:
        raise RequestRejected(
            "invalid repetition detection params: `min_pattern_size` must be less than or equal to"
            f" `max_pattern_size`, got min_pattern_size={wanted.min_pattern_size},"
            f" max_pattern_size={wanted.max_pattern_size}"
        )
    if wanted.max_pattern_size == 0:
        return None
    if wanted.min_count < 2:  # noqa: PLR2004  # what occurs once is no repetition
        raise RequestRejected(
            "invalid repetition detection params: `min_count` must be at least 2,"
            f" got min_count={wanted.min_count}"
        )
    return wanted


def _thinking_budget(budget: int | None) -> int | None:
    if budget is not None and budget < -1:
        raise RequestRejected(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited."
        )
    return None if budget == -1 else budget


def _logit_bias(bias: Mapping[str, float] | None, vocab_size: int) -> dict[int, float] | None:
    if bias is None:
        return None
    lowered: dict[int, float] = {}
    for key, value in bias.items():
        token_id = parse_token_id(key)
        assert token_id is not None, "check_request refuses other keys"
        number = f32(value)
        if number != number:  # noqa: PLR0124  # NaN
            raise RequestRejected("logit_bias must hold finite numbers.", param="logit_bias")
        lowered[token_id] = min(max(number, -_MAX_BIAS), _MAX_BIAS)
    check_ids("logit_bias", list(lowered), vocab_size)
    return lowered


def _stop_ids(
    request: SamplingRequest, vocab_size: int, defaults: GenerationDefaults, tokenizer: Tokenizer
) -> tuple[tuple[int, ...], int | None, tuple[int, ...]]:
    """Return the ids that stop, the EOS id that stops, and the sorted union of all.

    The model's further EOS ids stop as if the client had asked for them, in order. With
    ``ignore_eos`` none of them stops, but all are still masked until ``min_tokens``.
    """
    wanted = request.stop_token_ids or ()
    check_ids("stop_token_ids", wanted, vocab_size)
    primary = tokenizer.eos_token_id
    further = sorted(i for i in defaults.eos_token_ids if i != primary)
    everything = {*wanted, *defaults.eos_token_ids}
    if primary is not None:
        everything.add(primary)
    stops = list(wanted)
    if not request.ignore_eos:
        stops += [i for i in further if i not in stops]
    return tuple(stops), None if request.ignore_eos else primary, tuple(sorted(everything))


def _extra_args(request: SamplingRequest) -> dict[str, Any] | None:
    """Merge what goes to the engine unread; the transfer parameters win."""
    if (
        request.vllm_xargs is None
        and request.kv_transfer_params is None
        and request.ec_transfer_params is None
    ):
        return None
    merged: dict[str, Any] = dict(request.vllm_xargs or {})
    if request.kv_transfer_params is not None:
        merged["kv_transfer_params"] = request.kv_transfer_params
    if request.ec_transfer_params is not None:
        merged["ec_transfer_params"] = request.ec_transfer_params
    return merged
