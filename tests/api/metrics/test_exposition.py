import pytest

from vllmfront.api.http import CLIENT_STALLED, HttpStatistics
from vllmfront.api.metrics import HttpMetrics, expose
from vllmfront.control import SLEEP_OPERATIONS, OperationTimes
from vllmfront.engine.metrics import EngineLevels, EngineMetrics, TerminalCause

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def counted() -> EngineMetrics:
    metrics = EngineMetrics()
    metrics.open_rank(0, 1024)
    metrics.count_cause(TerminalCause.CLIENT_GONE)
    metrics.count_resend(continues=True)
    metrics.watch(
        lambda: EngineLevels(
            state="recovering",
            states=("ready", "recovering"),
            rank_states={0: "loading", 1: "dead"},
            all_rank_states=("loading", "stalled", "dead"),
            waiting_requests=4,
            holds=(("paused", "keep", 1_800_000_000.0),),
            sleep_level=2,
            weight_versions={0: "step-7"},
        )
    )
    return metrics


def test_the_classic_format_is_served_unless_asked_otherwise() -> None:
    plain = expose(counted().snapshot(), HttpMetrics(), model_name="m", accept="*/*")
    open_format = expose(counted().snapshot(), HttpMetrics(), model_name="m", accept=OPENMETRICS)

    assert plain.content_type.startswith("text/plain; version=")
    assert open_format.content_type.startswith("application/openmetrics-text")
    assert open_format.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{model_name="m",engine="0"} 0.0',
        'vllm:generation_tokens_total{model_name="m",engine="0"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m",engine="0"} 0.0',
        'vllmfront:engine_request_ends_total{cause="client_gone"} 1.0',
        'vllmfront:engine_request_resends_total{kind="sent_again"} 0.0',
        'vllmfront:engine_request_resends_total{kind="continued"} 1.0',
        'vllmfront:engine_state{state="recovering"} 1.0',
        'vllmfront:engine_state{state="ready"} 0.0',
        'vllmfront:engine_rank_state{engine="1",state="dead"} 1.0',
        'vllmfront:engine_rank_state{engine="1",state="stalled"} 0.0',
        "vllmfront:requests_waiting_for_engine 4.0",
        'vllmfront:generation_held{kind="paused",mode="keep"} 1.0',
        'vllmfront:generation_held_since_seconds{kind="paused"} 1.8e+09',
        'vllmfront:weight_version_info{engine="0",version="step-7"} 1.0',
        'vllm:engine_sleep_state{model_name="m",engine="1",sleep_state="awake"} 0.0',
        'vllm:engine_sleep_state{model_name="m",engine="1",sleep_state="discard_all"} 1.0',
    ],
)
def test_engine_series_exist_from_the_start(line: str) -> None:
    text = expose(counted().snapshot(), HttpMetrics(), model_name="m", accept="").body.decode()

    assert _unordered(line) in {_unordered(found) for found in text.splitlines()}


def test_http_requests_are_counted_by_status_class_and_handler() -> None:
    http = HttpMetrics()
    http.observe("POST", "/v1/completions", 200, 0.2)
    http.observe("POST", "/v1/completions", 404, 0.02)
    text = expose(None, http, model_name="m", accept="").body.decode()

    assert 'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0' in [
        *map(_sorted_labels, text.splitlines())
    ]
    assert "http_request_duration_highr_seconds_count 2.0" in text


def test_what_no_handler_answered_is_counted_by_status_and_by_cause() -> None:
    http = HttpMetrics()
    http.server = lambda: HttpStatistics(
        connections_open=0,
        connections_total=9,
        requests_active=0,
        requests_total=5,
        rejected={431: 2, 408: 1},
        ended={CLIENT_STALLED: 3},
        accepting=True,
        draining=False,
    )
    lines = expose(None, http, model_name="m", accept="").body.decode().splitlines()

    assert [line for line in lines if line.startswith("vllmfront:http")] == [
        'vllmfront:http_rejected_total{status="431"} 2.0',
        'vllmfront:http_rejected_total{status="408"} 1.0',
        'vllmfront:http_cut_short_total{cause="client_gone"} 0.0',
        'vllmfront:http_cut_short_total{cause="client_stalled"} 3.0',
        'vllmfront:http_cut_short_total{cause="shutdown"} 0.0',
    ]


def _unordered(line: str) -> tuple[str, frozenset[str], str]:
    name, _, rest = line.partition("{")
    labels, _, value = rest.partition("} ")
    return name, frozenset(labels.split(",")), value


def _sorted_labels(line: str) -> str:
    name, labels, value = _unordered(line)
    return f"{name}{{{','.join(sorted(labels))}}} {value}"


def test_orders_to_the_engines_are_counted_by_operation() -> None:
    times = OperationTimes(SLEEP_OPERATIONS)
    http = HttpMetrics(operations={"sleep_mode": times})
    with times.record("sleep"):
        under_way = expose(None, http, model_name="m", accept="").body.decode()
    text = expose(None, http, model_name="m", accept="").body.decode()

    assert 'vllm:sleep_mode_operations_in_flight{operation="sleep"} 1.0' in under_way
    assert 'vllm:sleep_mode_operations_in_flight{operation="sleep"} 0.0' in text
    assert 'vllm:sleep_mode_operation_duration_seconds_count{operation="sleep"} 1.0' in text
    assert 'vllm:sleep_mode_operation_duration_seconds_count{operation="wake"} 0.0' in text
