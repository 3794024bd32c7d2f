"""The periodic line that tells an operator how busy the engines are."""

import logging
from collections.abc import Mapping

import attrs

from vllmfront.engine.metrics import RankLoadSnapshot

QUIET_AFTER_INTERVALS = 2
"""Idle intervals until the line drops to DEBUG."""


@attrs.frozen
class StatsLine:
    """One line, and how loud it is."""

    level: int
    text: str


@attrs.define
class StatsReporter:
    """Turns totals into rates over the interval since the last call. Pure: brings no clock."""

    _last_time: float
    _prompt_tokens: int = 0
    _generation_tokens: int = 0
    _queries: int = 0
    _hits: int = 0
    _idle_intervals: int = 0

    def report(self, ranks: Mapping[int, RankLoadSnapshot], now: float) -> StatsLine:
        """Sum up *ranks*, with averages since the last report; *now* in monotonic seconds."""
        elapsed = max(now - self._last_time, 1e-9)
        prompt = sum(rank.prompt_tokens_computed for rank in ranks.values())
        generation = sum(rank.generation_tokens for rank in ranks.values())
        queries = sum(rank.prefix_cache_queries for rank in ranks.values())
        hits = sum(rank.prefix_cache_hits for rank in ranks.values())
        running = sum(rank.running for rank in ranks.values())
        waiting = sum(rank.waiting for rank in ranks.values())
        usage = sum(rank.kv_cache_usage for rank in ranks.values()) / max(len(ranks), 1)
        looked_up = queries - self._queries
        hit_rate = (hits - self._hits) / looked_up if looked_up else 0.0
        prompt_rate = (prompt - self._prompt_tokens) / elapsed
        generation_rate = (generation - self._generation_tokens) / elapsed
        idle = not (prompt_rate or generation_rate or running or waiting)
        self._idle_intervals = self._idle_intervals + 1 if idle else 0
        self._last_time, self._queries, self._hits = now, queries, hits
        self._prompt_tokens, self._generation_tokens = prompt, generation
        quiet = self._idle_intervals > QUIET_AFTER_INTERVALS
        return StatsLine(
            logging.DEBUG if quiet else logging.INFO,
            f"Avg prompt throughput: {prompt_rate:.1f} tokens/s, "
            f"Avg generation throughput: {generation_rate:.1f} tokens/s, "
            f"Running: {running} reqs, Waiting: {waiting} reqs, "
            f"GPU KV cache usage: {usage * 100:.1f}%, "
            f"Prefix cache hit rate: {hit_rate * 100:.1f}%",
        )
