from vllmfront.api.metrics import GateStatistics, HttpMetrics, expose
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import Reason


def lines_of(http: HttpMetrics) -> list[str]:
    return expose(None, http, model_name="m", accept="").body.decode().splitlines()


def test_all_causes_of_ends_are_there_from_the_start() -> None:
    http = HttpMetrics()
    http.inference.ends[TerminalCause.TIMED_OUT] += 2
    found = [each for each in lines_of(http) if each.startswith("vllmfront:request_ends_total")]

    assert len(found) == len(TerminalCause)
    assert 'vllmfront:request_ends_total{cause="timed_out"} 2.0' in found
    assert 'vllmfront:request_ends_total{cause="stop"} 0.0' in found


def test_refusals_are_counted_by_reason_and_by_the_references_names() -> None:
    http = HttpMetrics()
    http.inference.refusals = {Reason.QUEUE_FULL: 3, Reason.LOADING: 1}
    found = lines_of(http)

    assert 'vllmfront:requests_refused_total{reason="queue_full"} 3.0' in found
    assert 'vllmfront:requests_refused_total{reason="loading"} 1.0' in found
    name = 'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_'
    assert [each for each in found if each.startswith(name)] == [
        name + 'reqs"} 3.0',
        name + 'tokens"} 0.0',
    ]


def test_limits_show_beside_what_they_limit_and_only_where_there_are_any() -> None:
    free, limited = HttpMetrics(), HttpMetrics()
    limited.inference.gate = lambda: GateStatistics(
        in_flight=3,
        max_in_flight=0,
        queued_tokens=5,
        max_queued_tokens=100,
        loop_lag=0.25,
        max_loop_lag=1.0,
    )

    def gauges(http: HttpMetrics) -> list[str]:
        names = ("admitted_", "queued_", "loop_lag")
        whole = tuple(f"vllmfront:{name}" for name in names)
        return [each for each in lines_of(http) if each.startswith(whole)]

    assert gauges(free) == [
        "vllmfront:admitted_choices 0.0",
        "vllmfront:loop_lag_seconds 0.0",
    ]
    assert gauges(limited) == [
        "vllmfront:admitted_choices 3.0",
        "vllmfront:admitted_choices_limit 0.0",
        "vllmfront:queued_prompt_tokens 5.0",
        "vllmfront:queued_prompt_tokens_limit 100.0",
        "vllmfront:loop_lag_seconds 0.25",
        "vllmfront:loop_lag_limit_seconds 1.0",
    ]
