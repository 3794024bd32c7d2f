"""Metrics as an exporter reads them."""

import enum
from collections.abc import Mapping

import attrs

from vllmfront.engine.metrics._histogram import HistogramValue


class MetricKind(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@attrs.frozen
class Sample:
    """One series: label values, in the order of the family's names, and its value."""

    labels: tuple[str, ...]
    value: float | HistogramValue


@attrs.frozen
class MetricFamily:
    """All series of one name."""

    name: str
    """Without the prefix ``vllm:`` and the suffix ``_total``."""

    kind: MetricKind
    documentation: str
    label_names: tuple[str, ...]
    """``engine`` first; an exporter puts ``model_name`` in front."""

    samples: tuple[Sample, ...]


@attrs.frozen
class RankLoadSnapshot:
    """One engine rank, summed up for the periodic line."""

    running: int
    waiting: int
    kv_cache_usage: float
    """0 to 1."""

    prompt_tokens_computed: int
    """Since the start; prompt tokens that came from no cache."""

    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int


@attrs.frozen(kw_only=True)
class EngineLevels:
    """How the engines of a client stand, under the names of its states."""

    state: str
    """Of all together."""

    states: tuple[str, ...]
    """All that there are, as in ``all_rank_states``."""

    rank_states: Mapping[int, str]
    all_rank_states: tuple[str, ...]
    waiting_requests: int
    """Requests that wait for an engine in place of one that was lost."""

    holds: tuple[tuple[str, str, float], ...] = ()
    """What holds generation back: its kind, the mode, and since when, in seconds since 1970."""

    sleep_level: int | None = None
    """How deep the engines sleep; None: they are awake."""

    weight_versions: Mapping[int, str] = attrs.field(factory=dict)
    """What made the last output of each engine."""


@attrs.frozen
class MetricsSnapshot:
    families: tuple[MetricFamily, ...]
    ranks: Mapping[int, RankLoadSnapshot]
    causes: Mapping[str, int]
    """Ended requests by terminal cause."""

    malformed_messages: int = 0
    malformed_outputs: int = 0
    unknown_outputs: int = 0
    """Outputs for requests that had ended: late ones of aborted requests, mostly."""

    sink_failures: int = 0
    """Requests that a fault in their output pipeline ended."""

    resent_requests: int = 0
    """Requests sent again because their engine was lost before it said anything about them."""

    continued_requests: int = 0
    """Requests that went on elsewhere after their engine was lost, with the tokens they had."""

    levels: EngineLevels | None = None
    """None where no client is open."""
