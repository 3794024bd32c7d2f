import json

import attrs

from tests.api.routes.test_supervision import ENGINES, tree
from vllmfront import __version__
from vllmfront.api.metrics import HttpMetrics
from vllmfront.api.routes import HealthReport, ServingState, SupervisionReport
from vllmfront.api.routes._app import build_operator_app
from vllmfront.api.routes._mount import FIXED_ROUTES
from vllmfront.engine import LoraRequest
from vllmfront.engine.metrics import EngineMetrics, MetricsSnapshot

READY = HealthReport(state=ServingState.READY, reason="because", since=0.0)


@attrs.define
class Facts:
    report: HealthReport = READY
    served_model_names: tuple[str, ...] = ("first", "second")
    adapters: tuple[LoraRequest, ...] = ()
    model_root: str = "some/model"
    max_model_len: int | None = 1024
    engine_version: str | None = "0.33.0"
    load: int = 3

    def health(self) -> HealthReport:
        return self.report

    def supervision(self) -> SupervisionReport:
        return SupervisionReport(health=self.report, tree=tree("root"), engines=ENGINES, tasks=9)

    def metrics(self) -> MetricsSnapshot:
        return EngineMetrics().snapshot()


async def ask(method: str, path: str, facts: Facts | None = None) -> tuple[int, bytes, str]:
    app = build_operator_app(facts or Facts(), HttpMetrics())
    response = await app.test_client().open(path, method=method, json=None)
    body = await response.get_data(as_text=False)
    assert isinstance(body, bytes)
    return response.status_code, body, response.headers.get("allow", "")


async def test_each_served_name_is_a_model() -> None:
    _, body, _ = await ask("GET", "/v1/models")

    for part in (b'"id":"first"', b'"id":"second"', b'"owned_by":"vllmfront"'):
        assert part in body
    assert b'"root":"some/model","parent":null,"max_model_len":1024' in body


async def test_adapters_follow_with_their_parents() -> None:
    adapters = (
        LoraRequest(name="sql", int_id=1, path="/adapters/sql"),
        LoraRequest(name="chat", int_id=2, path="org/chat", base_model_name="second"),
    )

    _, body, _ = await ask("GET", "/v1/models", Facts(adapters=adapters))

    told = json.loads(body)["data"]
    assert [one["id"] for one in told] == ["first", "second", "sql", "chat"]
    assert [(one["root"], one["parent"], one["max_model_len"]) for one in told[2:]] == [
        ("/adapters/sql", "first", None),
        ("org/chat", "second", None),
    ]


async def test_both_versions_are_told() -> None:
    expected = f'{{"version":"0.33.0","vllmfront_version":"{__version__}"}}'.encode()

    assert (await ask("GET", "/version"))[1] == expected
    assert (await ask("GET", "/load"))[1] == b'{"server_load":3}'


async def test_the_inside_is_shown() -> None:
    status, body, _ = await ask("GET", "/supervisor")

    assert status == 200
    assert b'"tree":{"name":"root","state":"ready",' in body


async def test_unknown_paths_and_methods_have_no_body() -> None:
    assert await ask("GET", "/nope") == (404, b"", "")
    assert await ask("PUT", "/load") == (405, b"", "GET,HEAD")
    assert await ask("POST", "/metrics") == (405, b"", "GET,HEAD")


async def test_known_features_are_refused_by_name() -> None:
    status, body, _ = await ask("POST", "/v1/responses")

    assert status == 501
    assert b"the Responses API" in body
    assert b'"type":"NotImplementedError","param":null,"code":501' in body


async def test_metrics_answer_in_the_classic_format() -> None:
    status, body, _ = await ask("GET", "/metrics")

    assert status == 200
    assert b"vllmfront:request_ends_total" in body


def test_the_routes_that_are_known_before_the_app_are_its_own() -> None:
    app = build_operator_app(Facts(), HttpMetrics())

    assert sorted(FIXED_ROUTES) == sorted(
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if not rule.arguments
    )
