"""What is counted about engines and their requests, independent of how it is exposed.

``EngineMetrics.snapshot()`` is the only way out: families with the reference's names (without
``vllm:`` and ``_total``), a summary of each rank, and the terminal causes of requests.
"""

from vllmfront.engine.metrics._buckets import FAMILIES as HISTOGRAM_FAMILIES
from vllmfront.engine.metrics._buckets import defaults as default_bounds
from vllmfront.engine.metrics._causes import TerminalCause
from vllmfront.engine.metrics._engine import EngineMetrics
from vllmfront.engine.metrics._histogram import Histogram, HistogramValue
from vllmfront.engine.metrics._rank import QuietRankMetrics, RankMetrics
from vllmfront.engine.metrics._record import RequestRecord
from vllmfront.engine.metrics._snapshot import (
    EngineLevels,
    MetricFamily,
    MetricKind,
    MetricsSnapshot,
    RankLoadSnapshot,
    Sample,
)

__all__ = [
    "HISTOGRAM_FAMILIES",
    "EngineLevels",
    "EngineMetrics",
    "Histogram",
    "HistogramValue",
    "MetricFamily",
    "MetricKind",
    "MetricsSnapshot",
    "QuietRankMetrics",
    "RankLoadSnapshot",
    "RankMetrics",
    "RequestRecord",
    "Sample",
    "TerminalCause",
    "default_bounds",
]
