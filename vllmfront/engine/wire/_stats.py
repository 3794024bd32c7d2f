"""Scheduler statistics: what a step says about the engine as a whole."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from vllmfront.engine.wire import _check as check
from vllmfront.errors import ProtocolError


@attrs.frozen(kw_only=True)
class PrefixCacheStats:
    """Use of a prefix cache since the last message."""

    reset: bool = False
    requests: int = 0
    queries: int = 0
    """Tokens looked up."""

    hits: int = 0
    """Tokens found."""

    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    hits_by_source: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class SpecDecodingStats:
    """Speculative decoding since the last message."""

    num_spec_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: Sequence[int] = ()
    num_draft_tokens_per_pos: Sequence[int] = ()


@attrs.frozen(kw_only=True)
class CudagraphStats:
    """How the last batch was padded for a captured graph."""

    num_unpadded_tokens: int = 0
    num_padded_tokens: int = 0
    num_paddings: int = 0
    runtime_mode: str = ""


@attrs.frozen(kw_only=True)
class PerfStats:
    """Work done since the last message, a GPU."""

    num_flops_per_gpu: int = 0
    num_read_bytes_per_gpu: int = 0
    num_write_bytes_per_gpu: int = 0
    debug_stats: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class EvictionEvent:
    """The life of one cache block, in seconds."""

    lifetime_seconds: float = 0.0
    idle_seconds: float = 0.0
    reuse_gaps_seconds: Sequence[float] = ()


@attrs.frozen(kw_only=True)
class SchedulerStats:
    """One step's statistics: gauges are absolute, counters count since the last message."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    num_kv_fetch_reqs_by_stage: Mapping[str, int] = attrs.field(factory=dict)
    step_counter: int = 0
    current_wave: int = 0
    kv_cache_usage: float = 0.0
    """0 to 1."""

    iteration_details: Mapping[str, Any] | None = None
    prefix_cache_stats: PrefixCacheStats = PrefixCacheStats()
    connector_prefix_cache_stats: PrefixCacheStats | None = None
    kv_cache_eviction_events: Sequence[EvictionEvent] = ()
    spec_decoding_stats: SpecDecodingStats | None = None
    kv_connector_stats: Mapping[str, Any] | None = None
    ec_connector_stats: Mapping[str, Any] | None = None
    waiting_lora_adapters: Mapping[str, int] = attrs.field(factory=dict)
    running_lora_adapters: Mapping[str, int] = attrs.field(factory=dict)
    cudagraph_stats: CudagraphStats | None = None
    perf_stats: PerfStats | None = None


def decode_stats(value: object) -> SchedulerStats:
    """Read an engine's statistics; what is absent or has an unexpected type keeps its default.

    Statistics of another version are worth less than the message that brings them, so nothing in
    here is an error.
    """
    return SchedulerStats(**_read(value, _SCHEDULER))


_Reader = Callable[[Any, str], Any]


def _read(value: object, readers: Mapping[str, _Reader]) -> dict[str, Any]:
    if type(value) is not dict:
        return {}
    fields = {}
    for name, read in readers.items():
        item = value.get(name)
        if item is not None:
            with contextlib.suppress(ProtocolError):
                fields[name] = read(item, name)
    return fields


def _counts(value: object, name: str) -> dict[str, int]:
    counts = check.text_map(value, name)
    check.integers(list(counts.values()), name)
    return counts


def _numbers(value: object, name: str) -> list[float]:
    return [check.number(item, name) for item in check.array(value, name)]


_PREFIX_CACHE: Mapping[str, _Reader] = {
    "reset": check.boolean,
    "requests": check.integer,
    "queries": check.integer,
    "hits": check.integer,
    "preempted_requests": check.integer,
    "preempted_queries": check.integer,
    "preempted_hits": check.integer,
    "hits_by_source": _counts,
}
_SPEC_DECODING: Mapping[str, _Reader] = {
    "num_spec_tokens": check.integer,
    "num_drafts": check.integer,
    "num_draft_tokens": check.integer,
    "num_accepted_tokens": check.integer,
    "num_accepted_tokens_per_pos": check.integers,
    "num_draft_tokens_per_pos": check.integers,
}
_CUDAGRAPH: Mapping[str, _Reader] = {
    "num_unpadded_tokens": check.integer,
    "num_padded_tokens": check.integer,
    "num_paddings": check.integer,
    "runtime_mode": check.text,
}
_PERF: Mapping[str, _Reader] = {
    "num_flops_per_gpu": check.integer,
    "num_read_bytes_per_gpu": check.integer,
    "num_write_bytes_per_gpu": check.integer,
    "debug_stats": check.text_map,
}
_EVICTION: Mapping[str, _Reader] = {
    "lifetime_seconds": check.number,
    "idle_seconds": check.number,
    "reuse_gaps_seconds": _numbers,
}


def _nested(kind: type[Any], readers: Mapping[str, _Reader]) -> _Reader:
    return lambda value, name: kind(**_read(check.text_map(value, name), readers))


def _evictions(value: object, name: str) -> list[EvictionEvent]:
    return [EvictionEvent(**_read(item, _EVICTION)) for item in check.array(value, name)]


_SCHEDULER: Mapping[str, _Reader] = {
    "num_running_reqs": check.integer,
    "num_waiting_reqs": check.integer,
    "num_skipped_waiting_reqs": check.integer,
    "num_kv_fetch_reqs_by_stage": _counts,
    "step_counter": check.integer,
    "current_wave": check.integer,
    "kv_cache_usage": check.number,
    "iteration_details": check.text_map,
    "prefix_cache_stats": _nested(PrefixCacheStats, _PREFIX_CACHE),
    "connector_prefix_cache_stats": _nested(PrefixCacheStats, _PREFIX_CACHE),
    "kv_cache_eviction_events": _evictions,
    "spec_decoding_stats": _nested(SpecDecodingStats, _SPEC_DECODING),
    "kv_connector_stats": check.text_map,
    "ec_connector_stats": check.text_map,
    "waiting_lora_adapters": _counts,
    "running_lora_adapters": _counts,
    "cudagraph_stats": _nested(CudagraphStats, _CUDAGRAPH),
    "perf_stats": _nested(PerfStats, _PERF),
}


def encode_stats(stats: SchedulerStats) -> dict[str, Any]:
    """Return the map that an engine sends: every key present."""
    return attrs.asdict(stats)
