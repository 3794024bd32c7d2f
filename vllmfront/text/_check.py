"""What can be said of a sampling request before its prompt is rendered.

The order and the wording are the peer's. Chat requests go through a schema first, whose complaints
come all together in its own form; after that every rule stands for itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vllmfront.errors import MalformedRequest, RequestRejected
from vllmfront.text._constraints import check_constraints
from vllmfront.text._debug import debug_float, debug_strings, debug_value
from vllmfront.text._json import f32
from vllmfront.text._request import SamplingLimits, SamplingRequest, Surface

_CHAT_RANGES = {
    "temperature": (0.0, 2.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, 2.0),
}
_CHAT_MAX_N = 10


def check_schema(
    request: SamplingRequest, limits: SamplingLimits, others: Sequence[str] = ()
) -> None:
    """Check what clients learn of before anything else, even that the model is unknown.

    Args:
        request: What they ask for.
        limits: What the operator allows.
        others: Complaints about other fields, in the same form.

    Raises:
        RequestRejected: With all complaints.
    """
    _check_integers(request)
    if request.surface is Surface.CHAT:
        _complain([*others, *_chat_fields(request), *_stop_field(request, limits)])
        _complain(list(_chat_rules(request))[:1])
    else:
        _complain([*others, *_stop_field(request, limits)])


def check_request(request: SamplingRequest, limits: SamplingLimits) -> None:
    """Check all that ``check_schema`` does not, and that depends on neither model nor prompt.

    Raises:
        RequestRejected: A rule is broken; the field is named.
    """
    _check_choices(request, limits)
    if request.surface is Surface.CHAT:
        _check_chat_logprobs(request)
    else:
        _check_completion_logprobs(request)
    truncation = request.truncate_prompt_tokens
    if truncation is not None and truncation < -1:
        raise RequestRejected(
            "truncate_prompt_tokens must be >= -1.", param="truncate_prompt_tokens"
        )
    if truncation is not None and request.echo:
        raise RequestRejected(
            "`echo=true` is not supported with `truncate_prompt_tokens`.", param="echo"
        )
    if request.truncation_side not in {None, "left", "right"}:
        raise RequestRejected(
            f"truncation_side must be left or right, got {request.truncation_side!r}.",
            param="truncation_side",
        )
    check_constraints(request)
    _check_bias_keys(request.logit_bias)


_INTEGERS = {
    "max_tokens": (0, 1 << 32, "u32"),
    "max_completion_tokens": (0, 1 << 32, "u32"),
    "min_tokens": (0, 1 << 32, "u32"),
    "top_k": (-(1 << 32), 1 << 32, "u32"),
    "seed": (-(1 << 63), 1 << 63, "i64"),
    "stream_interval": (1, 1 << 32, "a nonzero u32"),
}


def _check_integers(request: SamplingRequest) -> None:
    """Refuse what does not fit the peer's integers: those of the engine are no larger."""
    for name, (low, high, kind) in _INTEGERS.items():
        value = getattr(request, name)
        if value is not None and not low <= value < high:
            raise MalformedRequest.misfit(
                f"invalid value: integer `{value}`, expected {kind}", name
            )


def _complain(complaints: list[str]) -> None:
    if complaints:
        raise RequestRejected("\n".join(complaints))


def _chat_fields(request: SamplingRequest) -> Iterator[str]:
    for name, (low, high) in _CHAT_RANGES.items():
        value = getattr(request, name)
        if value is not None and not low <= (rounded := f32(value)) <= high:
            yield _range(name, debug_float(rounded), low=debug_float(low), high=debug_float(high))
    top_p = request.top_p
    if top_p is not None and not 0.0 < (rounded := f32(top_p)) <= 1.0:
        yield (
            "top_p: Validation error: top_p must be in (0, 1] - greater than 0.0 and at most 1.0"
            f' [{{"value": Number({debug_float(rounded)})}}]'
        )
    n = request.n
    if n is not None and not 1 <= n <= _CHAT_MAX_N:
        yield _range("n", str(n), low="1", high=str(_CHAT_MAX_N))
    both = request.max_tokens is not None and request.max_completion_tokens is not None
    if both and request.max_tokens == 0:
        yield _range("max_tokens", "0", low="1")
    limit = _chat_limit(request)
    if limit is not None and limit < 1:
        yield _range("max_completion_tokens", str(limit), low="1")
    if request.top_logprobs is not None and request.top_logprobs < -1:
        yield _range("top_logprobs", str(request.top_logprobs), low="-1")


def _chat_limit(request: SamplingRequest) -> int | None:
    """``max_tokens`` is the older name and stands in for the newer one."""
    if request.max_completion_tokens is not None:
        return request.max_completion_tokens
    return request.max_tokens


def _range(name: str, value: str, *, low: str, high: str | None = None) -> str:
    bounds = f'"min": Number({low}), ' + (f'"max": Number({high}), ' if high is not None else "")
    return f'{name}: Validation error: range [{{{bounds}"value": Number({value})}}]'


def _stop_field(request: SamplingRequest, limits: SamplingLimits) -> Iterator[str]:
    stops = request.stop_strings
    if not all(stops):
        fault = "cannot be empty"
    elif len(stops) > limits.max_stop_strings:
        fault = f"must contain at most {limits.max_stop_strings} items"
    else:
        return
    shown = f'[{{"value": {debug_value(request.stop)}}}]'
    yield f"stop: Validation error: stop strings {fault} {shown}"


def _chat_rules(request: SamplingRequest) -> Iterator[str]:
    if request.top_logprobs and not request.logprobs:
        yield "__all__: top_logprobs is only allowed when logprobs is enabled"
    minimum = request.min_tokens or 0
    both = request.max_tokens is not None and request.max_completion_tokens is not None
    if both and request.max_tokens is not None and minimum > request.max_tokens:
        yield "__all__: min_tokens cannot be greater than max_tokens"
    elif (limit := _chat_limit(request)) is not None and minimum > limit:
        yield "__all__: min_tokens cannot be greater than max_completion_tokens"
    if _schema_name(request.response_format) == "":
        yield "__all__: JSON schema name cannot be empty"


def _schema_name(response_format: Mapping[str, Any] | None) -> Any:
    schema = (response_format or {}).get("json_schema")
    return schema.get("name") if isinstance(schema, Mapping) else None


def _check_choices(request: SamplingRequest, limits: SamplingLimits) -> None:
    n = request.n
    if n is not None and (n < 0 or n > limits.max_choices):
        raise RequestRejected(
            f"n must be between 1 and {limits.max_choices}, got {n}."
            " VLLM_MAX_N_SEQUENCES raises the limit.",
            param="n",
        )
    if (
        request.surface is Surface.COMPLETION
        and request.max_tokens is not None
        and request.max_tokens <= 0
        and not (request.echo and request.max_tokens == 0)
    ):
        raise RequestRejected("max_tokens=0 is only supported when echo=true.", param="max_tokens")


def _check_chat_logprobs(request: SamplingRequest) -> None:
    if request.logprob_token_ids and not request.logprobs:
        raise RequestRejected(
            "when using `logprob_token_ids`, `logprobs` must be set to true.",
            param="logprob_token_ids",
        )
    _check_prompt_logprobs(request, quote=str)


def _check_completion_logprobs(request: SamplingRequest) -> None:
    if request.logprobs is not None and request.logprobs < -1:
        raise RequestRejected("`logprobs` must be a non-negative value or -1.", param="logprobs")
    _check_prompt_logprobs(request, quote="`{}`".format)
    if request.logprob_token_ids and request.logprobs is None:
        raise RequestRejected(
            "when using `logprob_token_ids`, `logprobs` must be set.", param="logprob_token_ids"
        )


def _check_prompt_logprobs(request: SamplingRequest, *, quote: Callable[[str], str]) -> None:
    count = request.prompt_logprobs
    if count is None:
        return
    if request.stream and count != 0:
        raise RequestRejected(
            f"{quote('prompt_logprobs')} are not available when {quote('stream=true')}.",
            param="prompt_logprobs",
        )
    if count < -1:
        raise RequestRejected(
            f"{quote('prompt_logprobs')} must be a non-negative value or -1.",
            param="prompt_logprobs",
        )


def _check_bias_keys(bias: Mapping[str, float] | None) -> None:
    invalid = [key for key in bias or () if parse_token_id(key) is None]
    if invalid:
        raise RequestRejected(
            f"logit_bias contains key(s) that are not valid token IDs: {debug_strings(invalid)}."
            " Token IDs must be non-negative integers.",
            param="logit_bias",
        )


def parse_token_id(key: str) -> int | None:
    """Read a 32-bit id as the peer does: ASCII digits with an optional plus sign."""
    digits = key.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        return None
    token_id = int(digits) if len(digits) < 64 else 1 << 32  # noqa: PLR2004  # no endless digits
    return token_id if token_id < 1 << 32 else None
