"""Counters in the text formats that scrapers read."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import attrs
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from vllmfront.api.http import CLIENT_GONE, CLIENT_STALLED, SHUTDOWN, HttpStatistics
from vllmfront.api.metrics._http import HttpMetrics
from vllmfront.api.metrics._inference import inference_families
from vllmfront.engine.metrics import (
    EngineLevels,
    HistogramValue,
    MetricFamily,
    MetricKind,
    MetricsSnapshot,
)

PREFIX = "vllm:"
OWN_PREFIX = "vllmfront:"
"""Of families that the reference does not have."""


_OFFLOADED, _DISCARDED = 1, 2
"""Levels of sleep."""


@attrs.frozen
class Exposition:
    """One scrape's answer."""

    content_type: str
    body: bytes


def expose(
    snapshot: MetricsSnapshot | None, http: HttpMetrics, *, model_name: str, accept: str
) -> Exposition:
    """Render everything counted so far.

    Args:
        snapshot: The engines' side, None before there is one.
        http: The HTTP side.
        model_name: The primary served name, a label of all engine series.
        accept: The scraper's ``Accept``; the classic text format (0.0.4) is served unless it
            asks for OpenMetrics.
    """
    return render(collect(snapshot, http, model_name=model_name), accept=accept)


def collect(
    snapshot: MetricsSnapshot | None, http: HttpMetrics, *, model_name: str
) -> list[Metric]:
    """Return everything that this process has counted so far; the arguments are ``expose``'s."""
    inference = inference_families(
        http.inference, own_prefix=OWN_PREFIX, reference_prefix=PREFIX, model_name=model_name
    )
    return [*_engine_families(snapshot, model_name), *inference, *_http_families(http)]


def render(families: Iterable[Metric], *, accept: str) -> Exposition:
    """Write *families* in the format that the scraper asks for by *accept*."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    encode, content_type = choose_encoder(accept)
    return Exposition(content_type, encode(registry))


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _engine_families(snapshot: MetricsSnapshot | None, model_name: str) -> Iterator[Metric]:
    if snapshot is None:
        return
    for family in snapshot.families:
        yield _engine_family(family, model_name)
    ends = CounterMetricFamily(
        f"{OWN_PREFIX}engine_request_ends",
        "Ended engine requests, one a choice, by terminal cause.",
        labels=["cause"],
    )
    for cause, count in snapshot.causes.items():
        ends.add_metric([cause], count)
    yield ends
    faults = CounterMetricFamily(
        f"{OWN_PREFIX}boundary_faults", "What went wrong between us and engines.", labels=["kind"]
    )
    for kind in ("malformed_messages", "malformed_outputs", "unknown_outputs", "sink_failures"):
        faults.add_metric([kind], getattr(snapshot, kind))
    yield faults
    resends = CounterMetricFamily(
        f"{OWN_PREFIX}engine_request_resends",
        "Engine requests that went on elsewhere because their engine was lost, by whether they "
        "began anew or with the tokens that they had.",
        labels=["kind"],
    )
    resends.add_metric(["sent_again"], snapshot.resent_requests)
    resends.add_metric(["continued"], snapshot.continued_requests)
    yield resends
    if snapshot.levels is not None:
        yield from _level_families(snapshot.levels)
        yield _sleep_family(snapshot.levels, model_name)


def _level_families(levels: EngineLevels) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        f"{OWN_PREFIX}engine_state", "1 for the state of all engines together.", labels=["state"]
    )
    for name in levels.states:
        state.add_metric([name], name == levels.state)
    yield state
    ranks = GaugeMetricFamily(
        f"{OWN_PREFIX}engine_rank_state", "1 for the state of each engine.",
        labels=["engine", "state"],
    )  # fmt: skip
    for rank, state_name in levels.rank_states.items():
        for name in levels.all_rank_states:
            ranks.add_metric([str(rank), name], name == state_name)
    yield ranks
    waiting = GaugeMetricFamily(
        f"{OWN_PREFIX}requests_waiting_for_engine",
        "Requests that wait for an engine in place of a lost or silent one.",
    )
    waiting.add_metric([], levels.waiting_requests)
    yield waiting
    held = GaugeMetricFamily(
        f"{OWN_PREFIX}generation_held",
        "1 while generation is held back, by what (paused, sleeping) and how.",
        labels=["kind", "mode"],
    )
    since = GaugeMetricFamily(
        f"{OWN_PREFIX}generation_held_since_seconds",
        "When it began to be held back, in seconds since 1970.",
        labels=["kind"],
    )
    for kind, mode, begun in levels.holds:
        held.add_metric([kind, mode], 1)
        since.add_metric([kind], begun)
    yield from (held, since)
    weights = GaugeMetricFamily(
        f"{OWN_PREFIX}weight_version_info",
        "1 for what each engine calls the weights that made its last output.",
        labels=["engine", "version"],
    )
    for rank, version in levels.weight_versions.items():
        weights.add_metric([str(rank), version], 1)
    yield weights


def _sleep_family(levels: EngineLevels, model_name: str) -> Metric:
    """Return how deep engines sleep, in the reference's form; a mere pause is no state of its."""
    state = GaugeMetricFamily(
        f"{PREFIX}engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; weights_offloaded = 1 means sleep "
        "level 1; discard_all = 1 means sleep level 2.",
        labels=["model_name", "engine", "sleep_state"],
    )
    level = levels.sleep_level
    for rank in levels.rank_states:
        for name, holds in (
            ("awake", level is None),
            ("weights_offloaded", level == _OFFLOADED),
            ("discard_all", level == _DISCARDED),
        ):
            state.add_metric([model_name, str(rank), name], holds)
    return state


def _operation_families(http: HttpMetrics) -> Iterator[Metric]:
    """Yield what was ordered of the engines: how long it took, and what is under way."""
    for kind, operations in http.operations.items():
        durations = HistogramMetricFamily(
            f"{PREFIX}{kind}_operation_duration_seconds",
            f"Duration of one {kind} operation.",
            labels=["operation"],
        )
        under_way = GaugeMetricFamily(
            f"{PREFIX}{kind}_operations_in_flight",
            f"{kind} operations that are awaited now.",
            labels=["operation"],
        )
        for name, histogram in operations.durations.items():
            value = histogram.snapshot()
            durations.add_metric([name], _buckets(value.bounds, value.counts), value.sum)
            under_way.add_metric([name], operations.in_flight[name])
        yield durations
        yield under_way


def _engine_family(family: MetricFamily, model_name: str) -> Metric:
    name, labels = PREFIX + family.name, ["model_name", *family.label_names]
    if family.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, family.documentation, labels=labels)
        for sample in family.samples:
            assert isinstance(sample.value, HistogramValue)
            histogram.add_metric(
                [model_name, *sample.labels],
                _buckets(sample.value.bounds, sample.value.counts),
                sample.value.sum,
            )
        return histogram
    make = CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily
    plain = make(name, family.documentation, labels=labels)
    for sample in family.samples:
        assert not isinstance(sample.value, HistogramValue)
        plain.add_metric([model_name, *sample.labels], sample.value)
    return plain


def _http_families(http: HttpMetrics) -> Iterator[Metric]:
    yield from _operation_families(http)
    http.count_waiting()
    requests = CounterMetricFamily(
        "http_requests", "Answered requests.", labels=["method", "status", "handler"]
    )
    for labels, count in http.requests.items():
        requests.add_metric(labels, count)
    yield requests
    coarse = HistogramMetricFamily(
        "http_request_duration_seconds",
        "From a request's arrival to its response head, by handler.",
        labels=["method", "handler"],
    )
    for by, durations in http.durations.items():
        value = durations.snapshot()
        coarse.add_metric(by, _buckets(value.bounds, value.counts), value.sum)
    yield coarse
    fine = HistogramMetricFamily(
        "http_request_duration_highr_seconds", "From a request's arrival to its response head."
    )
    everything = http.all_durations.snapshot()
    fine.add_metric([], _buckets(everything.bounds, everything.counts), everything.sum)
    yield fine
    if http.server is not None:
        yield from _server_families(http.server())


def _server_families(server: HttpStatistics) -> Iterator[Metric]:
    rejected = CounterMetricFamily(
        f"{OWN_PREFIX}http_rejected",
        "Requests refused before any handler, by status; they are in no other http family.",
        labels=["status"],
    )
    for status, count in server.rejected.items():
        rejected.add_metric([str(status)], count)
    yield rejected
    cut_short = CounterMetricFamily(
        f"{OWN_PREFIX}http_cut_short",
        "Requests whose connection ended before their response, by cause.",
        labels=["cause"],
    )
    for cause in (CLIENT_GONE, CLIENT_STALLED, SHUTDOWN):
        cut_short.add_metric([cause.replace(" ", "_")], server.ended.get(cause, 0))
    yield cut_short


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return cumulative buckets; *counts* has one more entry than *bounds*, for ``+Inf``."""
    limits = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(limits, map(float, accumulate(counts)), strict=True))
