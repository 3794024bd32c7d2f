"""Sampling parameters: what the engine checks on arrival, fatally, and what it fails to check."""

from collections.abc import Callable, Mapping
from typing import Any

from vllmfront.engine._request import RepetitionDetection, SamplingParams
from vllmfront.engine.guard._checks import (
    INT64_MAX,
    check_boolean,
    check_count,
    check_integer,
    check_list,
    check_number,
    check_plain_map,
    check_token_ids,
    rejected,
    wrong_type,
)
from vllmfront.engine.guard._limits import GuardLimits
from vllmfront.engine.guard._structured import check_structured
from vllmfront.engine.wire import Tensor

# Positive floats that are zero as 32-bit numbers divide by zero in the sampler.
_LEAST_FLOAT32 = 1.1754943508222875e-38
_MOST_FLOAT32 = 3.4028234663852886e38

# Always sent: field, lowest and highest value.
_NUMBERS = (
    ("temperature", 0.0, 2.0),
    ("top_p", _LEAST_FLOAT32, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", _LEAST_FLOAT32, _MOST_FLOAT32),
)
# Engines add it to the prompt's length in 32 bits.
_MOST_MIN_TOKENS = (1 << 30) - 1
_INTEGERS = (
    ("top_k", -1, INT64_MAX),
    ("max_tokens", 1, INT64_MAX),
    ("min_tokens", 0, _MOST_MIN_TOKENS),
)


def check_sampling(params: SamplingParams, limits: GuardLimits, prompt_length: int) -> None:
    """Check the parameters of one engine request.

    Raises:
        RequestRejected: The engine would not survive them, or would refuse them.
    """
    check_integer(params.n, "n", 1, 1)
    for name, low, high in _NUMBERS:
        value = getattr(params, name)
        if type(value) is not float or not low <= value <= high:
            check_number(value, name, low, high)
    for name, least, most in _INTEGERS:
        value = getattr(params, name)
        if type(value) is not int or not least <= value <= most:
            check_integer(value, name, least, most)
    if params.min_tokens > params.max_tokens:
        raise rejected(
            f"min_tokens must be less than or equal to max_tokens={params.max_tokens}, "
            f"got {params.min_tokens}.",
            "min_tokens",
        )
    check_boolean(params.watermarking, "watermarking")
    start = params.routed_experts_prompt_start
    if type(start) is not int or not 0 <= start <= prompt_length:
        check_integer(start, "routed_experts_prompt_start", 0, prompt_length)
    _check_stops(params, limits)
    for name, check in _RARE.items():
        value = getattr(params, name)
        if value is not None:
            check(value, params, limits, prompt_length)


def _check_stops(params: SamplingParams, limits: GuardLimits) -> None:
    if params.stop_token_ids:
        check_token_ids(params.stop_token_ids, "stop_token_ids", limits.vocab_size)
    else:
        check_list(params.stop_token_ids, "stop_token_ids")
    check_token_ids(params.all_stop_token_ids, "all_stop_token_ids", limits.vocab_size)
    if params.eos_token_id is not None:
        check_token_ids([params.eos_token_id], "eos_token_id", limits.vocab_size)
    if params.min_tokens > 0:
        # The engine joins both lists to know what to mask.
        masked = {*params.stop_token_ids, *params.all_stop_token_ids}
        check_count(list(masked), "stop_token_ids", limits.max_stop_token_ids)


def _seed(value: Any, _params: SamplingParams, _limits: GuardLimits, _length: int) -> None:
    check_integer(value, "seed")


def _candidates(name: str) -> "_Check":
    def check(value: Any, _params: SamplingParams, limits: GuardLimits, _length: int) -> None:
        check_integer(value, name, -1)
        most = limits.most_candidates
        if most is not None and value > most:
            raise rejected(
                f"Requested {name} of {value}, which is greater than max allowed: {most}", name
            )

    return check


def _logprob_token_ids(
    value: Any, params: SamplingParams, limits: GuardLimits, _length: int
) -> None:
    name = "logprob_token_ids"
    check_token_ids(value, name, limits.vocab_size)
    if limits.max_logprob_token_ids is not None and len(value) > limits.max_logprob_token_ids:
        raise rejected(
            f"Requested {name} of length {len(value)}, which is greater than max allowed: "
            f"{limits.max_logprob_token_ids}",
            name,
        )
    if params.logprobs is not None and params.logprobs != len(value):
        raise rejected(
            "When both logprobs and logprob_token_ids are set, logprobs must equal "
            f"len(logprob_token_ids). Got logprobs={params.logprobs}, "
            f"len(logprob_token_ids)={len(value)}.",
            name,
        )


def _logit_bias(value: Any, _params: SamplingParams, limits: GuardLimits, _length: int) -> None:
    name = "logit_bias"
    if type(value) is not dict:
        raise wrong_type(name, "a map", value)
    check_token_ids(list(value), name, limits.vocab_size)
    for bias in value.values():
        check_number(bias, name, -_MOST_FLOAT32, _MOST_FLOAT32)
    check_count(value, name, limits.max_logit_bias)


def _allowed(value: Any, _params: SamplingParams, limits: GuardLimits, _length: int) -> None:
    name = "allowed_token_ids"
    check_token_ids(value, name, limits.vocab_size)
    if not value:
        raise rejected("allowed_token_ids is not None and empty!", name)
    check_count(value, name, limits.max_allowed_token_ids)


def _bad_words(value: Any, _params: SamplingParams, limits: GuardLimits, _length: int) -> None:
    name = "bad_words"
    for word in check_list(value, name):
        if not check_token_ids(word, name, limits.vocab_size):
            raise rejected("bad_words entries must tokenize to at least one token.", name)
    check_count(value, name, limits.max_bad_words)
    most = limits.max_bad_words_token_ids
    total = sum(map(len, value))
    if most is not None and total > most:
        raise rejected(f"bad_words are {total} tokens, at most {most} are allowed.", name)


def _structured(value: Any, _params: SamplingParams, _limits: GuardLimits, _length: int) -> None:
    check_structured(value)


def _thinking(value: Any, _params: SamplingParams, _limits: GuardLimits, _length: int) -> None:
    check_integer(value, "thinking_token_budget", -1)


def _repetition(value: Any, _params: SamplingParams, _limits: GuardLimits, _length: int) -> None:
    name = "repetition_detection"
    if not isinstance(value, RepetitionDetection):
        raise wrong_type(name, "RepetitionDetection", value)
    check_integer(value.max_pattern_size, f"{name}.max_pattern_size", 0)
    check_integer(value.min_pattern_size, f"{name}.min_pattern_size", 0, value.max_pattern_size)
    least = 2 if value.max_pattern_size > 0 else 0
    check_integer(value.min_count, f"{name}.min_count", least)


def _interval(value: Any, _params: SamplingParams, _limits: GuardLimits, _length: int) -> None:
    check_integer(value, "stream_interval", 1)


def _skip_cache(value: Any, _params: SamplingParams, _limits: GuardLimits, _length: int) -> None:
    check_boolean(value, "skip_reading_prefix_cache")


_TRANSFER_PARAMS = ("kv_transfer_params", "ec_transfer_params")


def _extra(value: Any, _params: SamplingParams, _limits: GuardLimits, _length: int) -> None:
    check_plain_map(value, "extra_args")
    for name in _TRANSFER_PARAMS:
        # Connectors look keys up in these without asking what they are.
        if value.get(name) is not None and type(value[name]) is not dict:
            raise wrong_type(name, "a map", value[name])


def _scored_ids(value: Any, params: SamplingParams, limits: GuardLimits, length: int) -> None:
    name = "prompt_logprob_token_ids"
    if not isinstance(value, Tensor):
        raise wrong_type(name, "a Tensor", value)
    if value.dtype != "<i4" or len(value.shape) != 2 or 0 in value.shape:  # noqa: PLR2004
        raise rejected(f"{name} must be a non-empty <i4 array of shape [rows, ids].", name)
    rows = length - 1 - (params.prompt_logprob_start or 0)
    if value.shape[0] != rows:
        raise rejected(
            f"{name} has {value.shape[0]} rows, but the prompt has {max(rows, 0)} scored rows.",
            name,
        )
    most = limits.most_candidates
    if most is not None and value.shape[1] > most:
        raise rejected(f"{name} has {value.shape[1]} ids a row, at most {most} are allowed.", name)
    # One below the ids is the padding.
    shifted = [token + 1 for row in value.tolist() for token in row]
    check_token_ids(shifted, name, None if limits.vocab_size is None else limits.vocab_size + 1)


def _scored_start(value: Any, params: SamplingParams, _limits: GuardLimits, length: int) -> None:
    name = "prompt_logprob_start"
    check_integer(value, name, 0, length)
    if params.prompt_logprob_token_ids is None:
        raise rejected(f"{name} requires prompt_logprob_token_ids.", name)


_NOT_WITH_TRACE = (
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "structured_outputs",
    "repetition_detection",
    "thinking_token_budget",
    "bad_words_token_ids",
)


def _trace(value: Any, params: SamplingParams, limits: GuardLimits, _length: int) -> None:
    name = "trace_decode_token_ids"
    if not check_token_ids(value, name, limits.vocab_size):
        raise rejected(f"{name} must be a non-empty list.", name)
    for other in _NOT_WITH_TRACE:
        if getattr(params, other) is not None:
            raise rejected(f"{name} is not supported with {other}.", name)


_Check = Callable[[Any, SamplingParams, GuardLimits, int], None]

# What most requests leave at None. The other arguments are there for checks across fields, which
# may rely on what stands above them.
_RARE: Mapping[str, _Check] = {
    "seed": _seed,
    "logprobs": _candidates("logprobs"),
    "prompt_logprobs": _candidates("prompt_logprobs"),
    "logprob_token_ids": _logprob_token_ids,
    "logit_bias": _logit_bias,
    "allowed_token_ids": _allowed,
    "bad_words_token_ids": _bad_words,
    "structured_outputs": _structured,
    "thinking_token_budget": _thinking,
    "repetition_detection": _repetition,
    "stream_interval": _interval,
    "skip_reading_prefix_cache": _skip_cache,
    "prompt_logprob_start": _scored_start,
    "prompt_logprob_token_ids": _scored_ids,
    "trace_decode_token_ids": _trace,
    "extra_args": _extra,
}
