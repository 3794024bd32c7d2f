"""What is counted about one engine rank."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from vllmfront.engine._output import PREEMPTED, QUEUED, SCHEDULED, EngineOutput
from vllmfront.engine.metrics import _buckets as buckets
from vllmfront.engine.metrics._causes import TerminalCause
from vllmfront.engine.metrics._histogram import Histogram, HistogramValue
from vllmfront.engine.metrics._record import RequestRecord
from vllmfront.engine.metrics._scheduler import SchedulerMetrics

_MOST_WAITING = 256
"""Requests that ended and wait to be counted together."""


class RankMetrics:
    """Counters and histograms of one rank, fed by the reader and by requests that end.

    Between ``begin_batch`` and ``end_batch``, ``record_tokens`` and ``record_output`` take the
    outputs of one engine message. Requests that get a token with each message need less: where
    ``last_token_at`` is ``previous_time``, whoever reads the message may set that to the
    message's time and count the token in the record, and tell ``record_steady`` how many such
    there were.
    """

    def __init__(
        self, *, max_model_len: int, bounds: Mapping[str, tuple[float, ...]] | None = None
    ) -> None:
        families = buckets.defaults(max_model_len) | dict(bounds or {})
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.prompt_tokens_by_source = {
            "local_compute": 0,
            "local_cache_hit": 0,
            "external_kv_transfer": 0,
        }
        self.generation_tokens = 0
        self.num_preemptions = 0
        self.corrupted_requests = 0
        self.request_success: Counter[str] = Counter()
        self.scheduler = SchedulerMetrics(families["kv_cache_residency"])
        self._histograms = {name: Histogram(families[key]) for name, key in _HISTOGRAMS.items()}
        self._iteration = self._histograms["iteration_tokens_total"]
        self._first_token = self._histograms["time_to_first_token_seconds"]
        gaps = self._histograms["inter_token_latency_seconds"]
        self._gaps = gaps
        self._gap_bounds, self._gap_counts = gaps.bounds, gaps.counts
        self._ended: list[RequestRecord] = []
        self._choices: list[tuple[int, int]] = []
        self.previous_time = math.nan
        """When the message before this one was made, by the engine's clock, if it had tokens for
        who had tokens before; else no time at all, which equals none."""

        # The message being read:
        self._engine_time = 0.0
        self._now = 0.0
        self._batch_tokens = 0
        self._batch_computed = 0
        # Rows of one message mostly have the same gap to their last token: a run of equal gaps
        # is counted by one addition a row.
        self._gap = 0.0
        self._run = 0

    def begin_batch(self, engine_time: float, now: float) -> None:
        """Start one engine message: its own timestamp, and our monotonic clock."""
        self._engine_time = engine_time
        self._now = now

    def record_tokens(self, record: RequestRecord, count: int) -> None:
        """Count new tokens of one request; the hot path."""
        if not (count or record.num_tokens):
            return
        time = self._engine_time
        gap = time - record.last_token_at
        record.last_token_at = time
        if record.num_tokens:
            if gap == self._gap:
                self._run += 1
            else:
                if gap == -math.inf:  # another engine has gone on with it
                    record.adopt(time - self._now)
                    gap = time - record.left_after
                self._end_run()
                self._gap = gap
                self._run = 1
        else:
            record.first_token_at = time
            self._first_token.observe(self._now - record.arrival)
        record.num_tokens += count
        self._batch_tokens += count

    def record_steady(self, count: int) -> None:
        """Count one new token for each of *count* requests, which had one at ``previous_time``."""
        if count:
            gap = self._engine_time - self.previous_time
            self._gap_counts[bisect_left(self._gap_bounds, gap)] += count
            self._gaps.sum += gap * count
            self._batch_tokens += count

    def release(self, record: RequestRecord) -> None:
        """Take note that another engine goes on with a request of this one, which is lost."""
        record.release(self._engine_time - self._now)

    def record_output(self, record: RequestRecord, output: EngineOutput) -> None:
        """Count everything that one decoded output says."""
        for kind, time in output.events:
            if kind == QUEUED:
                if not record.num_tokens:  # else another engine goes on with it
                    record.queued_at = time
            elif kind == SCHEDULED:
                # Only the first; those after a preemption do not end the queueing.
                record.scheduled_at = record.scheduled_at or time
            elif kind == PREEMPTED:
                record.preemptions += 1
                self.num_preemptions += 1
        prefill = output.prefill_stats
        if prefill is not None:
            record.cached_tokens = prefill.num_cached_tokens
            self.prompt_tokens += prefill.num_prompt_tokens
            self.prompt_tokens_cached += prefill.num_cached_tokens
            sources = self.prompt_tokens_by_source
            sources["local_compute"] += prefill.num_computed_tokens
            sources["local_cache_hit"] += prefill.num_local_cached_tokens
            sources["external_kv_transfer"] += prefill.num_external_cached_tokens
            self._batch_computed += prefill.num_computed_tokens
        if output.num_nans_in_logits:
            record.corrupted = True
        if output.new_token_ids:
            self.record_tokens(record, len(output.new_token_ids))

    def end_batch(self) -> None:
        """Finish one engine message."""
        if self._run:
            self._end_run()
        self.previous_time = self._engine_time or math.nan
        if self._batch_tokens or self._batch_computed:
            self.generation_tokens += self._batch_tokens
            self._iteration.observe(self._batch_tokens + self._batch_computed)
            self._batch_tokens = self._batch_computed = 0

    def _end_run(self) -> None:
        run, gap = self._run, self._gap
        self._run = 0
        self._gap_counts[bisect_left(self._gap_bounds, gap)] += run
        self._gaps.sum += gap * run

    def record_end(self, record: RequestRecord, cause: TerminalCause, now: float) -> None:
        """Count the end of one engine request; *now* is our monotonic clock."""
        reason = cause.finished_reason
        if reason is None:
            return
        record.settle()
        self.request_success[reason] += 1
        self.corrupted_requests += record.corrupted
        record.ended_at = now
        self._ended.append(record)
        if len(self._ended) >= _MOST_WAITING:
            self._count_ended()

    def _count_ended(self) -> None:
        """Put what requests that ended were like into the histograms.

        Many at a time, histogram by histogram: that is several times as cheap.
        """
        ended, self._ended = self._ended, []
        choices, self._choices = self._choices, []
        answered = [one for one in ended if one.num_tokens]
        scheduled = [one for one in ended if one.scheduled_at]
        ran = [one for one in scheduled if one.num_tokens]
        values: dict[str, Iterable[float]] = {
            "request_params_n": [number for number, _ in choices],
            "request_max_num_generation_tokens": [longest for _, longest in choices],
            "e2e_request_latency_seconds": [one.ended_at - one.arrival for one in ended],
            "request_prompt_tokens": [one.prompt_tokens for one in ended],
            "request_generation_tokens": [one.num_tokens for one in ended],
            "request_prefill_kv_computed_tokens": [
                max(0, one.prompt_tokens - one.cached_tokens) for one in ended
            ],
            "request_num_preemptions": [one.preemptions for one in ended],
            "request_time_per_output_token_seconds": [_pace(one) for one in ended],
            "request_params_max_tokens": [
                one.max_tokens for one in ended if one.max_tokens is not None
            ],
            "request_decode_time_seconds": [_decode_time(one) for one in answered],
            "request_queue_time_seconds": [one.scheduled_at - one.queued_at for one in scheduled],
            "request_prefill_time_seconds": [one.first_token_at - one.scheduled_at for one in ran],
            "request_inference_time_seconds": [one.last_token_at - one.scheduled_at for one in ran],
        }
        for name, observed in values.items():
            self._histograms[name].observe_all(observed)

    def histogram(self, name: str) -> HistogramValue:
        """Return a histogram with all that was counted so far."""
        self._count_ended()
        return self._histograms[name].snapshot()

    def record_choices(self, choices: int, max_tokens_generated: int) -> None:
        """Count the end of one whole request: its ``n`` and the length of its longest choice."""
        self._choices.append((choices, max_tokens_generated))
        if len(self._choices) >= _MOST_WAITING:
            self._count_ended()


def _decode_time(record: RequestRecord) -> float:
    return record.last_token_at - record.first_token_at


def _pace(record: RequestRecord) -> float:
    """Return seconds a token after the first one."""
    return _decode_time(record) / (record.num_tokens - 1) if record.num_tokens > 1 else 0.0


class QuietRankMetrics(RankMetrics):
    """Keeps the records of running requests true and counts nothing else."""

    def release(self, record: RequestRecord) -> None:
        """Do nothing: no times are kept."""

    def record_tokens(self, record: RequestRecord, count: int) -> None:
        record.num_tokens += count

    def record_output(self, record: RequestRecord, output: EngineOutput) -> None:
        record.num_tokens += len(output.new_token_ids)

    def end_batch(self) -> None:
        """Count nothing, and keep no time, so that no request is ever steady."""

    def record_end(self, record: RequestRecord, cause: TerminalCause, now: float) -> None:
        """Count nothing."""

    def record_choices(self, choices: int, max_tokens_generated: int) -> None:
        """Count nothing."""


# Name to the family of its buckets.
_HISTOGRAMS = {
    "iteration_tokens_total": "iteration_tokens",
    "request_prompt_tokens": "request_tokens",
    "request_generation_tokens": "request_tokens",
    "request_max_num_generation_tokens": "request_tokens",
    "request_params_max_tokens": "request_tokens",
    "request_prefill_kv_computed_tokens": "request_tokens",
    "request_params_n": "request_params_n",
    "request_num_preemptions": "request_num_preemptions",
    "time_to_first_token_seconds": "time_to_first_token",
    "inter_token_latency_seconds": "inter_token_latency",
    "request_time_per_output_token_seconds": "inter_token_latency",
    "e2e_request_latency_seconds": "request_latency",
    "request_queue_time_seconds": "request_latency",
    "request_prefill_time_seconds": "request_latency",
    "request_decode_time_seconds": "request_latency",
    "request_inference_time_seconds": "request_latency",
}
