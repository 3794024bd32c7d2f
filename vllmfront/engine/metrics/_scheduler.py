"""What one rank's scheduler reports about itself: gauges as last told, counters summed up."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllmfront.engine.metrics._histogram import Histogram
from vllmfront.engine.wire import (
    PrefixCacheStats,
    SchedulerStats,
    SpecDecodingStats,
    decode_stats,
)


class SchedulerMetrics:
    """Sums of one rank's scheduler statistics."""

    def __init__(self, residency_bounds: tuple[float, ...]) -> None:
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.external_queries = 0
        self.external_hits = 0
        self.hits_by_source: Counter[str] = Counter()
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.accepted_by_position: Counter[int] = Counter()
        self.flops = 0
        self.read_bytes = 0
        self.write_bytes = 0
        self.block_lifetime = Histogram(residency_bounds)
        self.block_idle = Histogram(residency_bounds)
        self.block_reuse_gap = Histogram(residency_bounds)
        self._latest: Mapping[str, Any] = {}

    @property
    def latest(self) -> SchedulerStats:
        """The newest statistics; of their counters only those since the message before."""
        return decode_stats(self._latest)

    def record(self, raw: Mapping[str, Any]) -> None:
        """Take one message's statistics, as ``Batch`` carries them.

        One comes with every step, and decoding it costs as much as ten tokens; so one that
        counts nothing is only kept for its gauges.
        """
        self._latest = raw
        if _counts_something(raw):
            self._add(decode_stats(raw))

    def shows_work(self, raw: Mapping[str, Any]) -> bool:
        """Tell whether *raw*, which is not recorded yet, shows that a step has done something.

        It counts something, or more of the cache is in use, or less, than the last time. How
        many requests run or wait says nothing: that changes as they come and go.
        """
        latest = self._latest
        return _counts_something(raw) or any(
            raw.get(name) != latest.get(name) for name in _WORK_GAUGES
        )

    def forget_gauges(self) -> None:
        """The engine has gone, and what it was doing with it."""
        self._latest = {}

    def _add(self, stats: SchedulerStats) -> None:
        prefix = stats.prefix_cache_stats
        self.prefix_queries += prefix.queries
        self.prefix_hits += prefix.hits
        self.hits_by_source["device"] += prefix.hits
        if stats.connector_prefix_cache_stats is not None:
            self._record_connector(stats.connector_prefix_cache_stats)
        if stats.spec_decoding_stats is not None:
            self._record_drafts(stats.spec_decoding_stats)
        if stats.perf_stats is not None:
            self.flops += stats.perf_stats.num_flops_per_gpu
            self.read_bytes += stats.perf_stats.num_read_bytes_per_gpu
            self.write_bytes += stats.perf_stats.num_write_bytes_per_gpu
        for event in stats.kv_cache_eviction_events:
            self.block_lifetime.observe(event.lifetime_seconds)
            self.block_idle.observe(event.idle_seconds)
            for gap in event.reuse_gaps_seconds:
                self.block_reuse_gap.observe(gap)

    def _record_connector(self, stats: PrefixCacheStats) -> None:
        self.external_queries += stats.queries
        self.external_hits += stats.hits
        self.hits_by_source.update(stats.hits_by_source)

    def _record_drafts(self, stats: SpecDecodingStats) -> None:
        self.drafts += stats.num_drafts
        self.draft_tokens += stats.num_draft_tokens
        self.accepted_tokens += stats.num_accepted_tokens
        for position, count in enumerate(stats.num_accepted_tokens_per_pos):
            self.accepted_by_position[position] += count


_WORK_GAUGES = ("step_counter", "kv_cache_usage")

_OTHER_COUNTS = (
    "connector_prefix_cache_stats",
    "kv_cache_eviction_events",
    "spec_decoding_stats",
    "perf_stats",
)


def _counts_something(raw: Mapping[str, Any]) -> bool:
    """Tell whether *raw* has counts that must be added up."""
    prefix = raw.get("prefix_cache_stats")
    if type(prefix) is dict and prefix.get("queries"):
        return True
    return any(raw.get(name) for name in _OTHER_COUNTS)
