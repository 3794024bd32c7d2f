import httpx
import pytest
import trio

from tests.api.routes.test_app import Facts
from vllmfront.api.http import Router, handler_as_asgi
from vllmfront.api.metrics import HttpMetrics
from vllmfront.api.routes import HealthReport, ServingState, open_operator_router


def report(state: ServingState, *, age: float = 0.0, retry_after: float | None = None) -> Facts:
    now = trio.current_time()
    return Facts(
        HealthReport(state=state, reason="because", since=now - age, retry_after=retry_after)
    )


async def ask(facts: Facts, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    async with open_operator_router(facts, HttpMetrics()) as router:
        return await _send(router, method, path, headers)


async def _send(router: Router, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app=handler_as_asgi(router))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.parametrize("path", ["/health", "/ping"])
@pytest.mark.parametrize("state", ServingState)
async def test_health_is_a_status_alone(path: str, state: ServingState) -> None:
    answer = await ask(report(state), path)

    well = {ServingState.READY, ServingState.PAUSED, ServingState.ASLEEP}
    assert answer.status_code == (200 if state in well else 503)
    assert answer.content == b""
    assert "content-type" not in answer.headers


async def test_health_tells_its_state_to_those_who_ask() -> None:
    facts = report(ServingState.STALLED)
    answer = await ask(facts, "/health", accept="application/json")

    assert answer.status_code == 503
    assert answer.json()["state"] == "stalled"
    assert (await ask(facts, "/health", accept="*/*")).content == b""


async def test_ping_is_posted_as_well() -> None:
    assert (await ask(report(ServingState.READY), "/ping", "POST")).status_code == 200


@pytest.mark.parametrize("state", ServingState)
async def test_ready_names_the_state_and_the_reason(state: ServingState) -> None:
    answer = await ask(report(state, age=90.0), "/ready")
    body = answer.json()

    assert answer.status_code == (200 if state is ServingState.READY else 503)
    assert answer.headers["content-type"] == "application/json"
    assert list(body) == ["state", "reason", "since", "seconds"]
    assert (body["state"], body["reason"]) == (state.value, "because")
    assert 90.0 <= body["seconds"] < 95.0
    assert body["since"].endswith("Z")


async def test_ready_says_when_to_try_again() -> None:
    answer = await ask(report(ServingState.RECOVERING, retry_after=3.2), "/ready")

    assert answer.headers["retry-after"] == "4"
    assert answer.json()["retry_after"] == 4
    assert "retry-after" not in (await ask(report(ServingState.LOADING), "/ready")).headers


@pytest.mark.parametrize("state", ServingState)
async def test_a_server_lives_whatever_its_state(state: ServingState) -> None:
    answer = await ask(report(state), "/live")

    assert answer.status_code == 200
    assert answer.json()["state"] == state.value


def test_a_report_counts_back_from_the_wall_clock() -> None:
    told = HealthReport(state=ServingState.READY, reason="because", since=40.0)

    assert told.json_fields(now=100.0, wall=1_000_000_000.0) == {
        "state": "ready",
        "reason": "because",
        "since": "2001-09-09T01:45:40.000Z",
        "seconds": 60.0,
    }
