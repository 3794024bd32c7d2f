"""What is counted, as scrapers and operators read it."""

from vllmfront.api.metrics._exposition import Exposition, expose
from vllmfront.api.metrics._http import UNCOUNTED_PATHS, HttpMetrics
from vllmfront.api.metrics._inference import GateStatistics, InferenceMetrics
from vllmfront.api.metrics._stats_line import StatsLine, StatsReporter

__all__ = [
    "UNCOUNTED_PATHS",
    "Exposition",
    "GateStatistics",
    "HttpMetrics",
    "InferenceMetrics",
    "StatsLine",
    "StatsReporter",
    "expose",
]
