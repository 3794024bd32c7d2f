"""The ``usage`` and ``metrics`` members, as JSON."""

from typing import Any

import attrs
import msgspec

from vllmfront.engine import EngineOutput

_encode = msgspec.json.encode


class Usage(msgspec.Struct):
    """What one HTTP request has used, over all its prompts and choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """None where the server is not configured to tell, or the engine has not told yet."""

    def note(self, output: EngineOutput) -> None:
        """Take from *output* what it says about the prompt."""
        if self.cached_tokens is not None and output.prefill_stats is not None:
            self.cached_tokens += output.prefill_stats.num_cached_tokens

    def json(self) -> bytes:
        """Return the object that ends an answer, with details about the prompt."""
        details = b"null"
        if self.cached_tokens is not None:
            details = b'{"cached_tokens":%d}' % self.cached_tokens
        return usage_json(self.prompt_tokens, self.completion_tokens, details)


def usage_json(prompt_tokens: int, completion_tokens: int, details: bytes = b"null") -> bytes:
    return (
        b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
        b'"prompt_tokens_details":%b,"completion_tokens_details":{"reasoning_tokens":0}}'
        % (prompt_tokens, prompt_tokens + completion_tokens, completion_tokens, details)
    )


@attrs.frozen(kw_only=True)
class RequestTimes:
    """Marks of one request on the engine's clock, in seconds; 0.0 where unknown."""

    queued_at: float = 0.0
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0


def timing_metrics(times: RequestTimes, num_tokens: int) -> dict[str, Any]:
    """Return the ``metrics`` object; what depends on an unknown mark is None."""
    first, last, scheduled = times.first_token_at, times.last_token_at, times.scheduled_at
    decoding = (last - first) * 1000 if first and last else None
    running = (last - scheduled) * 1000 if scheduled and last else 0.0
    return {
        "time_to_first_token_ms": (first - scheduled) * 1000 if scheduled and first else None,
        "generation_time_ms": decoding,
        "queue_time_ms": (scheduled - times.queued_at) * 1000
        if times.queued_at and scheduled
        else None,
        "mean_itl_ms": decoding / (num_tokens - 1)
        if decoding is not None and num_tokens > 1
        else None,
        "tokens_per_second": num_tokens / running * 1000 if running > 0 else None,
    }


def metrics_json(times: RequestTimes, num_tokens: int, *, omit_unknown: bool) -> bytes:
    values = timing_metrics(times, num_tokens)
    if omit_unknown:
        values = {name: value for name, value in values.items() if value is not None}
    return _encode(values)
