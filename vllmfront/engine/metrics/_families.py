"""From counters to named families: which number has which name."""

from collections.abc import Callable, Iterable, Mapping

import attrs

from vllmfront.engine.metrics._rank import RankMetrics
from vllmfront.engine.metrics._snapshot import (
    MetricFamily,
    MetricKind,
    RankLoadSnapshot,
    Sample,
)

Value = Callable[[RankMetrics], float]


@attrs.frozen
class _Plain:
    """A family with one series a rank."""

    name: str
    kind: MetricKind
    documentation: str
    value: Value


@attrs.frozen
class _Labelled:
    """A family with a series for each value of a further label."""

    name: str
    kind: MetricKind
    documentation: str
    label: str
    values: Callable[[RankMetrics], Mapping[str, float]]


def _waiting(rank: RankMetrics) -> int:
    stats = rank.scheduler.latest
    return stats.num_waiting_reqs + stats.num_skipped_waiting_reqs


_CACHE_SOURCES = ("device", "host", "disk", "p2p", "external_unspecified")
_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER

_PLAIN = (
    _Plain(
        "num_requests_running", _GAUGE, "Requests in execution batches.",
        lambda rank: rank.scheduler.latest.num_running_reqs,
    ),
    _Plain(
        "num_requests_waiting", _GAUGE, "Requests that wait to be scheduled.",
        _waiting,
    ),
    _Plain(
        "kv_cache_usage_perc", _GAUGE, "Part of the KV cache in use; 1 is all of it.",
        lambda rank: rank.scheduler.latest.kv_cache_usage,
    ),
    _Plain(
        "prefix_cache_queries", _COUNTER, "Tokens looked up in the prefix cache.",
        lambda rank: rank.scheduler.prefix_queries,
    ),
    _Plain(
        "prefix_cache_hits", _COUNTER, "Tokens found in the prefix cache.",
        lambda rank: rank.scheduler.prefix_hits,
    ),
    _Plain(
        "external_prefix_cache_queries", _COUNTER,
        "Tokens looked up through the KV connector.",
        lambda rank: rank.scheduler.external_queries,
    ),
    _Plain(
        "external_prefix_cache_hits", _COUNTER, "Tokens found through the KV connector.",
        lambda rank: rank.scheduler.external_hits,
    ),
    _Plain(
        "spec_decode_num_drafts", _COUNTER, "Speculative drafts.",
        lambda rank: rank.scheduler.drafts,
    ),
    _Plain(
        "spec_decode_num_draft_tokens", _COUNTER, "Tokens drafted.",
        lambda rank: rank.scheduler.draft_tokens,
    ),
    _Plain(
        "spec_decode_num_accepted_tokens", _COUNTER, "Drafted tokens that were accepted.",
        lambda rank: rank.scheduler.accepted_tokens,
    ),
    _Plain(
        "estimated_flops_per_gpu", _COUNTER, "Estimated floating point operations a GPU.",
        lambda rank: rank.scheduler.flops,
    ),
    _Plain(
        "estimated_read_bytes_per_gpu", _COUNTER, "Estimated bytes read from memory a GPU.",
        lambda rank: rank.scheduler.read_bytes,
    ),
    _Plain(
        "estimated_write_bytes_per_gpu", _COUNTER, "Estimated bytes written to memory a GPU.",
        lambda rank: rank.scheduler.write_bytes,
    ),
    _Plain(
        "num_preemptions", _COUNTER, "Preemptions by the scheduler.",
        lambda rank: rank.num_preemptions,
    ),
    _Plain(
        "prompt_tokens", _COUNTER, "Prompt tokens processed.", lambda rank: rank.prompt_tokens
    ),
    _Plain(
        "prompt_tokens_cached", _COUNTER, "Prompt tokens that came from a cache.",
        lambda rank: rank.prompt_tokens_cached,
    ),
    _Plain(
        "generation_tokens", _COUNTER, "Tokens generated.", lambda rank: rank.generation_tokens
    ),
    _Plain(
        "corrupted_requests", _COUNTER, "Ended requests whose logits held a NaN.",
        lambda rank: rank.corrupted_requests,
    ),
)  # fmt: skip

_LABELLED = (
    _Labelled(
        "num_requests_waiting_by_reason", _GAUGE, "Waiting requests by reason.", "reason",
        lambda rank: {
            "capacity": rank.scheduler.latest.num_waiting_reqs,
            "deferred": rank.scheduler.latest.num_skipped_waiting_reqs,
        },
    ),
    _Labelled(
        "prompt_tokens_cached_by_source", _COUNTER,
        "Prompt tokens from a cache, by where the cache is.", "source",
        lambda rank: dict.fromkeys(_CACHE_SOURCES, 0) | rank.scheduler.hits_by_source,
    ),
    _Labelled(
        "prompt_tokens_by_source", _COUNTER, "Prompt tokens by where they came from.", "source",
        lambda rank: rank.prompt_tokens_by_source,
    ),
    _Labelled(
        "request_success", _COUNTER, "Ended requests by reason; errors do not count.",
        "finished_reason", lambda rank: rank.request_success,
    ),
    _Labelled(
        "spec_decode_num_accepted_tokens_per_pos", _COUNTER,
        "Accepted tokens by position in the draft.", "position",
        lambda rank: {
            str(position): count
            for position, count in sorted(rank.scheduler.accepted_by_position.items())
        },
    ),
)  # fmt: skip

_HISTOGRAM_TEXTS = {
    "iteration_tokens_total": "Tokens in one engine step.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Generated tokens of a request.",
    "request_max_num_generation_tokens": "Generated tokens of a request's longest choice.",
    "request_params_max_tokens": "The limit on generated tokens of a request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens of a request that no cache held.",
    "request_params_n": "Choices of a request.",
    "request_num_preemptions": "How often a request was preempted.",
    "time_to_first_token_seconds": "From arrival to the first token.",
    "inter_token_latency_seconds": "Between updates of one request.",
    "request_time_per_output_token_seconds": "Mean time of a request's tokens after the first.",
    "e2e_request_latency_seconds": "From arrival to the end of a request.",
    "request_queue_time_seconds": "From queueing to the first scheduling.",
    "request_prefill_time_seconds": "From the first scheduling to the first token.",
    "request_decode_time_seconds": "From the first to the last token.",
    "request_inference_time_seconds": "From the first scheduling to the last token.",
}


def rank_families(ranks: Mapping[int, RankMetrics]) -> Iterable[MetricFamily]:
    """Yield the families that have series by rank."""
    for plain in _PLAIN:
        samples = [Sample((str(n),), plain.value(rank)) for n, rank in ranks.items()]
        yield MetricFamily(plain.name, plain.kind, plain.documentation, ("engine",), tuple(samples))
    for family in _LABELLED:
        samples = [
            Sample((str(n), label), value)
            for n, rank in ranks.items()
            for label, value in family.values(rank).items()
        ]
        names = ("engine", family.label)
        yield MetricFamily(family.name, family.kind, family.documentation, names, tuple(samples))
    for name, text in _HISTOGRAM_TEXTS.items():
        samples = [Sample((str(n),), rank.histogram(name)) for n, rank in ranks.items()]
        yield MetricFamily(name, MetricKind.HISTOGRAM, text, ("engine",), tuple(samples))
    yield from _residency_families(ranks)
    yield _adapter_family(ranks)


def _residency_families(ranks: Mapping[int, RankMetrics]) -> Iterable[MetricFamily]:
    """Yield how long cache blocks live; empty histograms unless the engine reports evictions."""
    for name, text, attribute in (
        ("kv_block_lifetime_seconds", "From allocation to eviction.", "block_lifetime"),
        ("kv_block_idle_before_evict_seconds", "From last use to eviction.", "block_idle"),
        ("kv_block_reuse_gap_seconds", "Between two uses of a block.", "block_reuse_gap"),
    ):
        samples = tuple(
            Sample((str(n),), getattr(rank.scheduler, attribute).snapshot())
            for n, rank in ranks.items()
        )
        yield MetricFamily(name, MetricKind.HISTOGRAM, text, ("engine",), samples)


def _adapter_family(ranks: Mapping[int, RankMetrics]) -> MetricFamily:
    samples = [
        Sample(
            (str(n), ",".join(stats.running_lora_adapters), ",".join(stats.waiting_lora_adapters)),
            1,
        )
        for n, rank in ranks.items()
        for stats in [rank.scheduler.latest]
        if stats.running_lora_adapters or stats.waiting_lora_adapters
    ]
    return MetricFamily(
        "lora_requests_info",
        MetricKind.GAUGE,
        "Adapters with running and with waiting requests.",
        ("engine", "running_lora_adapters", "waiting_lora_adapters"),
        tuple(samples),
    )


def load_snapshot(rank: RankMetrics) -> RankLoadSnapshot:
    """Sum up one rank for the periodic line."""
    latest = rank.scheduler.latest
    return RankLoadSnapshot(
        running=latest.num_running_reqs,
        waiting=_waiting(rank),
        kv_cache_usage=latest.kv_cache_usage,
        prompt_tokens_computed=rank.prompt_tokens_by_source["local_compute"],
        generation_tokens=rank.generation_tokens,
        prefix_cache_queries=rank.scheduler.prefix_queries,
        prefix_cache_hits=rank.scheduler.prefix_hits,
    )
