"""What is counted, as scrapers and operators read it."""

from vllmfront.api.metrics._exposition import Exposition, collect, expose, render
from vllmfront.api.metrics._http import UNCOUNTED_PATHS, HttpMetrics
from vllmfront.api.metrics._inference import GateStatistics, InferenceMetrics
from vllmfront.api.metrics._merge import PackedFamily, counted, merge, pack, unpack
from vllmfront.api.metrics._stats_line import StatsLine, StatsReporter

__all__ = [
    "UNCOUNTED_PATHS",
    "Exposition",
    "GateStatistics",
    "HttpMetrics",
    "InferenceMetrics",
    "PackedFamily",
    "StatsLine",
    "StatsReporter",
    "collect",
    "counted",
    "expose",
    "merge",
    "pack",
    "render",
    "unpack",
]
