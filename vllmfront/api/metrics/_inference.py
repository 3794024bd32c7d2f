"""What the inference routes count: how requests end, and what is refused."""

from collections.abc import Callable, Iterator

import attrs
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import Reason

_REFERENCE_REASONS = {
    Reason.QUEUE_FULL: "max_num_queued_reqs",
    Reason.TOO_MANY_QUEUED_TOKENS: "max_num_queued_tokens",
}
"""As the reference labels what its two admission limits have refused."""


@attrs.frozen(kw_only=True)
class GateStatistics:
    """How much is in, and how much may be; a limit of None is none."""

    in_flight: int = 0
    """Choices of requests that were let in and have not ended."""

    max_in_flight: int | None = None
    queued_tokens: int = 0
    """Prompt tokens that wait for their first answer; counted only where they are limited."""

    max_queued_tokens: int | None = None
    loop_lag: float = 0.0
    """Seconds that the event loop was late when last looked at."""

    max_loop_lag: float | None = None


@attrs.define
class InferenceMetrics:
    """Requests of clients, which an engine may know as several or not at all."""

    ends: dict[TerminalCause, int] = attrs.field(factory=lambda: dict.fromkeys(TerminalCause, 0))
    """Every request that a handler has seen is in here exactly once."""

    refusals: dict[Reason, int] = attrs.field(factory=dict)
    """Those that were refused with a 503 before anything was sent, by reason."""

    gate: Callable[[], GateStatistics] = GateStatistics


def inference_families(
    metrics: InferenceMetrics, *, own_prefix: str, reference_prefix: str, model_name: str
) -> Iterator[Metric]:
    """Yield all families; those of the reference carry the model's name."""
    ends = CounterMetricFamily(
        f"{own_prefix}request_ends",
        "Inference requests of clients by what ended them, each once.",
        labels=["cause"],
    )
    for cause, count in metrics.ends.items():
        ends.add_metric([cause.value], count)
    yield ends
    refused = CounterMetricFamily(
        f"{own_prefix}requests_refused",
        "Requests answered with 503 before anything was done for them, by reason.",
        labels=["reason"],
    )
    for reason, count in metrics.refusals.items():
        refused.add_metric([reason.value], count)
    yield refused
    rejections = CounterMetricFamily(
        f"{reference_prefix}admission_rejections",
        "Requests refused by an admission limit, by limit.",
        labels=["model_name", "reason"],
    )
    for reason, label in _REFERENCE_REASONS.items():
        rejections.add_metric([model_name, label], metrics.refusals.get(reason, 0))
    yield rejections
    for name, text, value in _gauges(metrics.gate()):
        if value is not None:
            yield GaugeMetricFamily(own_prefix + name, text, value=value)


def _gauges(gate: GateStatistics) -> Iterator[tuple[str, str, float | None]]:
    yield "admitted_choices", "Choices of requests in flight.", gate.in_flight
    yield "admitted_choices_limit", "As many may be in flight.", gate.max_in_flight
    if gate.max_queued_tokens is not None:
        yield (
            "queued_prompt_tokens",
            "Prompt tokens that wait for their first answer.",
            gate.queued_tokens,
        )
        yield "queued_prompt_tokens_limit", "So many stop the admission.", gate.max_queued_tokens
    yield "loop_lag_seconds", "How late the event loop was, last.", gate.loop_lag
    yield "loop_lag_limit_seconds", "So much, for long, stops the admission.", gate.max_loop_lag
