"""What is counted, and when."""

import math
from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from tests.engine._helpers import CONFIG, RecordingSink, open_engines, request, settle
from vllmfront.engine import (
    EngineClientConfig,
    EngineOutput,
    FinishReason,
    PrefillStats,
    TerminalCause,
)
from vllmfront.engine.metrics import (
    EngineLevels,
    EngineMetrics,
    Histogram,
    HistogramValue,
    MetricsSnapshot,
    RankMetrics,
    RequestRecord,
    default_bounds,
)
from vllmfront.engine.wire import (
    EvictionEvent,
    PerfStats,
    PrefixCacheStats,
    SchedulerStats,
    SpecDecodingStats,
    encode_stats,
)


def record(**fields: Any) -> RequestRecord:
    return RequestRecord(**({"arrival": 100.0, "prompt_tokens": 3, "max_tokens": 9} | fields))


def rank_metrics() -> RankMetrics:
    return RankMetrics(max_model_len=100)


def observed(metrics: RankMetrics, name: str) -> tuple[int, float]:
    value = metrics.histogram(name)
    return value.count, value.sum


def series(snapshot: MetricsSnapshot, name: str) -> Mapping[tuple[str, ...], float]:
    [family] = [one for one in snapshot.families if one.name == name]
    return {
        sample.labels: sample.value.count
        if isinstance(sample.value, HistogramValue)
        else sample.value
        for sample in family.samples
    }


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)

    assert histogram.snapshot() == HistogramValue((1.0, 2.0), (2, 2, 1), 7.5)


def test_token_bounds_are_1_2_5_up_to_the_longest_context() -> None:
    assert default_bounds(100)["request_tokens"] == (1, 2, 5, 10, 20, 50, 100)
    assert default_bounds(40)["request_tokens"] == (1, 2, 5, 10, 20)
    assert default_bounds(1)["iteration_tokens"][:3] == (1, 8, 16)


def test_latencies_use_the_clock_that_they_belong_to() -> None:
    metrics, one = rank_metrics(), record()
    first = EngineOutput(
        new_token_ids=[5],
        events=((1, 10.0), (2, 11.0), (3, 11.2), (2, 11.4)),
        prefill_stats=PrefillStats(
            num_prompt_tokens=3,
            num_computed_tokens=1,
            num_cached_tokens=2,
            num_local_cached_tokens=2,
        ),
    )
    metrics.begin_batch(12.0, now=100.5)
    metrics.record_output(one, first)
    metrics.end_batch()
    for step, count in ((12.25, 1), (12.5, 2)):
        metrics.begin_batch(step, now=101.0)
        metrics.record_tokens(one, count)
        metrics.end_batch()
    metrics.record_end(one, TerminalCause.LENGTH, now=102.0)

    assert observed(metrics, "time_to_first_token_seconds") == (1, 0.5)
    assert observed(metrics, "inter_token_latency_seconds") == (2, 0.5)
    assert observed(metrics, "e2e_request_latency_seconds") == (1, 2.0)
    assert observed(metrics, "request_queue_time_seconds") == (1, 1.0)
    assert observed(metrics, "request_prefill_time_seconds") == (1, 1.0)
    assert observed(metrics, "request_decode_time_seconds") == (1, 0.5)
    assert observed(metrics, "request_inference_time_seconds") == (1, 1.5)
    assert observed(metrics, "request_time_per_output_token_seconds")[1] == pytest.approx(0.5 / 3)
    assert observed(metrics, "request_generation_tokens") == (1, 4)
    assert observed(metrics, "request_prompt_tokens") == (1, 3)
    assert observed(metrics, "request_prefill_kv_computed_tokens") == (1, 1)
    assert observed(metrics, "request_params_max_tokens") == (1, 9)
    assert observed(metrics, "request_num_preemptions") == (1, 1)
    assert observed(metrics, "iteration_tokens_total") == (3, 2 + 1 + 2)
    assert (metrics.prompt_tokens, metrics.prompt_tokens_cached) == (3, 2)
    assert metrics.generation_tokens == 4
    assert metrics.num_preemptions == 1


def test_equal_and_unequal_gaps_in_one_message_are_all_counted() -> None:
    metrics = rank_metrics()
    records = [record() for _ in range(5)]
    for time, several in ((1.0, records), (2.0, records[:2]), (3.0, records)):
        metrics.begin_batch(time, now=200.0)
        for one in several:
            metrics.record_tokens(one, 1)
        metrics.end_batch()

    assert observed(metrics, "inter_token_latency_seconds") == (7, 2 * 1.0 + 2 * 1.0 + 3 * 2.0)


def test_a_token_of_one_is_no_time_per_token() -> None:
    metrics, one = rank_metrics(), record()
    metrics.begin_batch(1.0, now=100.0)
    metrics.record_tokens(one, 1)
    metrics.end_batch()
    metrics.record_end(one, TerminalCause.STOP, now=101.0)

    assert observed(metrics, "request_time_per_output_token_seconds") == (1, 0.0)


def test_errors_do_not_count_as_success() -> None:
    metrics = rank_metrics()
    for cause in TerminalCause:
        metrics.record_end(record(), cause, now=100.0)

    assert set(metrics.request_success) == {"stop", "length", "repetition", "abort"}
    assert observed(metrics, "e2e_request_latency_seconds")[0] == 9


def test_scheduler_counters_add_up_and_gauges_are_the_latest() -> None:
    metrics = EngineMetrics()
    scheduler = metrics.open_rank(0, 100).scheduler
    counting = SchedulerStats(
        num_running_reqs=5,
        prefix_cache_stats=PrefixCacheStats(queries=10, hits=4),
        connector_prefix_cache_stats=PrefixCacheStats(
            queries=6, hits=3, hits_by_source={"host": 3}
        ),
        spec_decoding_stats=SpecDecodingStats(
            num_drafts=1,
            num_draft_tokens=3,
            num_accepted_tokens=2,
            num_accepted_tokens_per_pos=[1, 1, 0],
        ),
        perf_stats=PerfStats(num_flops_per_gpu=7),
        kv_cache_eviction_events=[
            EvictionEvent(lifetime_seconds=2.0, idle_seconds=1.0, reuse_gaps_seconds=[0.5, 0.5])
        ],
    )
    idle = SchedulerStats(
        num_running_reqs=1,
        num_waiting_reqs=2,
        num_skipped_waiting_reqs=3,
        kv_cache_usage=0.5,
        running_lora_adapters={"a": 1, "b": 1},
    )
    for stats in (counting, counting, idle):
        scheduler.record(encode_stats(stats))
    snapshot = metrics.snapshot()

    for name, value in {
        "num_requests_running": 1,
        "num_requests_waiting": 5,
        "kv_cache_usage_perc": 0.5,
        "prefix_cache_queries": 20,
        "prefix_cache_hits": 8,
        "external_prefix_cache_queries": 12,
        "external_prefix_cache_hits": 6,
        "spec_decode_num_accepted_tokens": 4,
        "estimated_flops_per_gpu": 14,
        "kv_block_lifetime_seconds": 2,
        "kv_block_reuse_gap_seconds": 4,
    }.items():
        assert series(snapshot, name) == {("0",): value}, name
    assert series(snapshot, "num_requests_waiting_by_reason") == {
        ("0", "capacity"): 2,
        ("0", "deferred"): 3,
    }
    assert series(snapshot, "prompt_tokens_cached_by_source")["0", "host"] == 6
    assert series(snapshot, "spec_decode_num_accepted_tokens_per_pos")["0", "1"] == 2
    assert series(snapshot, "lora_requests_info") == {("0", "a,b", ""): 1}
    assert snapshot.ranks[0].waiting == 5

    scheduler.forget_gauges()

    assert series(metrics.snapshot(), "num_requests_running") == {("0",): 0}


def test_series_exist_from_the_start_for_every_rank() -> None:
    metrics = EngineMetrics(bounds={"inter_token_latency": (1.0,)})
    metrics.open_rank(1, None)
    metrics.open_rank(0, None)
    snapshot = metrics.snapshot()

    assert list(series(snapshot, "generation_tokens")) == [("0",), ("1",)]
    assert metrics.open_rank(0, 5) is metrics.rank(0)
    assert metrics.rank(0) is not metrics.rank(1)
    [family] = [one for one in snapshot.families if one.name == "inter_token_latency_seconds"]
    assert isinstance(family.samples[0].value, HistogramValue)
    assert family.samples[0].value.bounds == (1.0,)


async def run_two_choices(config: EngineClientConfig) -> MetricsSnapshot:
    """Run a request whose choices end with a limit and with a stop string."""
    async with open_engines(config=config) as (client, [engine]):
        sinks = [RecordingSink(), RecordingSink(stop_after=2)]
        async with client.submit(request(n=2), sinks) as stream:
            one, other = [(await engine.receive_add()).internal_id for _ in range(2)]
            engine.send_tokens(one, [1])
            engine.send_tokens(other, [1, 2])
            await settle()
            engine.send_tokens(one, [2, 3], FinishReason.LENGTH)
            await stream.wait_finished()
        assert stream.num_generated_tokens == 5
        return client.metrics.snapshot()


async def test_a_whole_request_is_counted() -> None:
    snapshot = await run_two_choices(CONFIG)

    assert snapshot.causes["stop"] == snapshot.causes["length"] == 1
    assert series(snapshot, "generation_tokens") == {("0",): 5}
    assert series(snapshot, "request_success") == {("0", "stop"): 1, ("0", "length"): 1}
    assert series(snapshot, "request_params_n") == {("0",): 1}


async def test_causes_are_counted_even_where_nothing_else_is() -> None:
    snapshot = await run_two_choices(attrs.evolve(CONFIG, count_metrics=False))

    assert snapshot.causes["stop"] == snapshot.causes["length"] == 1
    assert snapshot.families == ()
    assert snapshot.ranks[0].generation_tokens == 0


def test_levels_are_asked_for_at_each_snapshot() -> None:
    metrics, asked = EngineMetrics(), list[int]()

    def levels() -> EngineLevels:
        asked.append(1)
        return EngineLevels(
            state="ready",
            states=("ready",),
            rank_states={},
            all_rank_states=(),
            waiting_requests=len(asked),
        )

    assert metrics.snapshot().levels is None
    metrics.watch(levels)
    for waiting in (1, 2):
        found = metrics.snapshot().levels
        assert found is not None
        assert found.waiting_requests == waiting


def test_marks_move_over_to_the_clock_of_the_next_engine() -> None:
    one = record()
    one.queued_at, one.scheduled_at, one.first_token_at, one.last_token_at = 10.0, 11.0, 12.0, 15.0
    one.release(clock_offset=-5.0)
    one.release(clock_offset=99.0)
    assert one.last_token_at == math.inf

    one.adopt(clock_offset=45.0)

    assert (one.queued_at, one.scheduled_at, one.first_token_at) == (60.0, 61.0, 62.0)
    assert one.left_after == 65.0


def test_marks_that_are_not_known_stay_unknown() -> None:
    one = record()
    one.first_token_at = one.last_token_at = 12.0
    one.release(clock_offset=0.0)
    one.adopt(clock_offset=7.0)

    assert (one.queued_at, one.scheduled_at, one.first_token_at) == (0.0, 0.0, 19.0)


def test_one_that_no_engine_goes_on_with_ends_at_its_last_token() -> None:
    one = record()
    one.last_token_at = 12.0
    one.settle()
    assert one.last_token_at == 12.0

    one.release(clock_offset=3.0)
    one.settle()
    assert one.last_token_at == 12.0


def test_steady_requests_are_counted_as_others_are() -> None:
    one_by_one, together = rank_metrics(), rank_metrics()
    ours, theirs = [[record() for _ in range(3)] for _ in range(2)]
    for time in (5.0, 5.01, 5.03):
        one_by_one.begin_batch(time, 101.0)
        together.begin_batch(time, 101.0)
        steady = 0
        for mine, other in zip(ours, theirs, strict=True):
            one_by_one.record_tokens(mine, 1)
            if other.last_token_at == together.previous_time:
                other.last_token_at = time
                other.num_tokens += 1
                steady += 1
            else:
                together.record_tokens(other, 1)
        together.record_steady(steady)
        one_by_one.end_batch()
        together.end_batch()

    assert steady == 3
    assert together.generation_tokens == one_by_one.generation_tokens == 9
    gaps = "inter_token_latency_seconds"
    assert together.histogram(gaps).counts == one_by_one.histogram(gaps).counts
    assert together.histogram(gaps).sum == pytest.approx(one_by_one.histogram(gaps).sum)
    assert [each.last_token_at for each in theirs] == [each.last_token_at for each in ours]


def test_nothing_is_steady_after_a_message_without_a_time() -> None:
    metrics = rank_metrics()
    metrics.begin_batch(0.0, 101.0)
    metrics.end_batch()

    assert record().last_token_at != metrics.previous_time


def test_an_output_without_tokens_does_not_hide_that_the_next_has_the_first() -> None:
    metrics, one = rank_metrics(), record()
    for time, count in ((5.0, 0), (5.01, 1)):
        metrics.begin_batch(time, 102.0)
        assert one.last_token_at != metrics.previous_time
        metrics.record_tokens(one, count)
        metrics.end_batch()

    assert one.first_token_at == 5.01
    assert observed(metrics, "time_to_first_token_seconds") == (1, 2.0)
