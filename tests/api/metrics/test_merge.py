"""Metrics of several processes as one."""

import msgspec
from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.parser import text_string_to_metric_families

from vllmfront.api.metrics import (
    HttpMetrics,
    PackedFamily,
    collect,
    counted,
    merge,
    pack,
    render,
    unpack,
)
from vllmfront.engine import EngineMetrics

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def families(answered: int, running: int, lag: float) -> list[Metric]:
    requests = CounterMetricFamily("http_requests", "Answered.", labels=["method"])
    requests.add_metric(["GET"], answered)
    took = HistogramMetricFamily("took_seconds", "How long.")
    took.add_metric([], [("0.5", 1.0), ("+Inf", float(answered))], 2.5)
    busy = GaugeMetricFamily("vllm:num_requests_running", "Run.", labels=["model_name", "engine"])
    busy.add_metric(["tiny", "0"], running)
    admitted = GaugeMetricFamily("vllmfront:admitted_choices", "In.", value=running)
    limit = GaugeMetricFamily("vllmfront:admitted_choices_limit", "Most.", value=7)
    late = GaugeMetricFamily("vllmfront:loop_lag_seconds", "Late.", value=lag)
    state = GaugeMetricFamily("vllmfront:engine_state", "State.", labels=["state"])
    state.add_metric(["ready"], 1)
    return [requests, took, busy, admitted, limit, late, state]


def sent(metrics: list[Metric]) -> list[PackedFamily]:
    """Pack as if for another process."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(pack(metrics)), type=list[PackedFamily])


def values(packed: list[PackedFamily]) -> Values:
    text = render(unpack(packed), accept="").body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_grows_is_summed_up_and_what_holds_now_is_taken_where_it_is_known() -> None:
    reports = [sent(families(3, 0, 0.1)), sent(families(5, 4, 0.4)), sent(families(1, 2, 0.2))]
    found = values(merge(reports, newest=lambda engine: 2 if engine == "0" else None))

    assert found["http_requests_total", frozenset({("method", "GET")})] == 9
    assert found["took_seconds_bucket", frozenset({("le", "0.5")})] == 3
    assert found["took_seconds_bucket", frozenset({("le", "+Inf")})] == 9
    assert found["took_seconds_sum", frozenset()] == 7.5
    engine = frozenset({("model_name", "tiny"), ("engine", "0")})
    assert found["vllm:num_requests_running", engine] == 2
    assert found["vllmfront:admitted_choices", frozenset()] == 6
    assert found["vllmfront:admitted_choices_limit", frozenset()] == 7
    assert found["vllmfront:loop_lag_seconds", frozenset()] == 0.4
    assert found["vllmfront:engine_state", frozenset({("state", "ready")})] == 1


def test_of_a_dead_process_what_it_has_counted_stays() -> None:
    kept = counted(sent(families(3, 9, 0.1)))

    assert [family.name for family in kept] == ["http_requests", "took_seconds"]


def test_one_report_is_shown_as_it_would_be_without_others() -> None:
    metrics = collect(EngineMetrics().snapshot(), HttpMetrics(), model_name="tiny")
    alone = render(metrics, accept="").body
    merged = render(unpack(merge([sent(metrics)], newest=lambda _: None)), accept="").body

    assert merged == alone
