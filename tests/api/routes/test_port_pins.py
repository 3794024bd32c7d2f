"""One port an engine: whose a request is, and what probes there tell."""

import json
from collections.abc import Awaitable

import httpx
import pytest

from tests.api.routes.test_app import Facts
from tests.api.routes.test_probes import report
from vllmfront.api.http import ANSWERED, Handler, HttpRequest, ResponseWriter, handler_as_asgi
from vllmfront.api.routes import PortOverview, PortPins, ServingState


def tell_rank(request: HttpRequest, response: ResponseWriter) -> Awaitable[None]:
    """Answer with the header, as it is found in both ways."""
    rank = request.header(b"x-data-parallel-rank")
    listed = [value.decode() for name, value in request.headers if name == b"x-data-parallel-rank"]
    body = {"rank": None if rank is None else rank.decode(), "listed": listed}
    response.respond(200, json.dumps(body).encode())
    return ANSWERED


def pins() -> PortPins:
    facts: dict[int, Facts] = {4: report(ServingState.READY), 5: report(ServingState.RECOVERING)}
    return PortPins(tell_rank, {8000: 4, 8001: 5}, facts)


async def ask(
    handler: Handler, path: str, *, port: int = 8000, method: str = "GET", **headers: str
) -> httpx.Response:
    transport = httpx.ASGITransport(app=handler_as_asgi(handler))
    base = f"http://test:{port}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        return await client.request(method, path, headers=named)


@pytest.mark.parametrize(("port", "rank"), [(8000, "4"), (8001, "5")])
async def test_a_request_is_that_of_its_ports_engine(port: int, rank: str) -> None:
    answer = await ask(pins(), "/v1/completions", port=port, method="POST")

    assert answer.json() == {"rank": rank, "listed": [rank]}


async def test_naming_the_ports_engine_is_allowed_and_another_is_not() -> None:
    own = await ask(pins(), "/x", x_data_parallel_rank="4")
    other = await ask(pins(), "/x", x_data_parallel_rank="5")

    assert own.json() == {"rank": "4", "listed": ["4"]}
    assert other.status_code == 400
    assert other.json()["error"]["param"] == "data_parallel_rank"
    assert "port 8000 is that of engine 4" in other.json()["error"]["message"]


async def test_a_port_of_nobody_is_left_alone() -> None:
    assert (await ask(pins(), "/x", port=9)).json() == {"rank": None, "listed": []}


async def test_probes_tell_of_the_ports_engine() -> None:
    statuses = [
        (await ask(pins(), path, port=port)).status_code
        for path in ("/health", "/ready", "/live")
        for port in (8000, 8001)
    ]

    assert statuses == [200, 503, 200, 503, 200, 200]


@pytest.mark.parametrize("path", ["/health", "/ready", "/readyz"])
@pytest.mark.parametrize("state", [ServingState.READY, ServingState.LOADING])
async def test_the_overview_has_the_probes_and_nothing_else(path: str, state: ServingState) -> None:
    overview = PortOverview(report(state))
    answer = await ask(overview, path)
    missing = await ask(overview, "/v1/models")

    assert answer.status_code == (200 if state is ServingState.READY else 503)
    assert missing.status_code == 404
