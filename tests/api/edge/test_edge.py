import httpx

from vllmfront.api.edge import AccessControl, CorsPolicy, Edge
from vllmfront.api.http import HttpRequest, ResponseWriter, Router, handler_as_asgi
from vllmfront.api.metrics import HttpMetrics


async def answer(_request: HttpRequest, response: ResponseWriter) -> None:
    response.respond(200, b"{}")


def make_edge(*, keys: tuple[str, ...] = (), request_id_headers: bool = False) -> Edge:
    router = Router()
    router.add("POST", "/v1/completions", answer)
    router.add("GET", "/health", answer)
    return Edge(
        handler=router,
        allowed=router.allowed,
        access=AccessControl(keys),
        cors=CorsPolicy(),
        metrics=HttpMetrics(),
        request_id_headers=request_id_headers,
    )


async def ask(edge: Edge, method: str, path: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=handler_as_asgi(edge))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, headers=headers)


async def test_a_refused_key_reaches_no_route_and_no_metric() -> None:
    edge = make_edge(keys=("k",))
    response = await ask(edge, "POST", "/v1/completions", origin="http://a.example")

    assert (response.status_code, response.content) == (401, b'{"error":"Unauthorized"}')
    assert "vary" not in response.headers
    assert edge.metrics.requests == {}


async def test_options_are_answered_for_every_path() -> None:
    edge = make_edge(keys=("k",))

    assert (await ask(edge, "OPTIONS", "/v1/completions")).headers["allow"] == "POST"
    assert "allow" not in (await ask(edge, "OPTIONS", "/nope")).headers
    assert edge.metrics.requests == {}


async def test_requests_are_counted_under_their_route() -> None:
    edge = make_edge()
    await ask(edge, "POST", "/v1/completions")
    await ask(edge, "GET", "/some/scan")
    await ask(edge, "GET", "/health")

    assert edge.metrics.requests == {
        ("POST", "2xx", "/v1/completions"): 1,
        ("GET", "4xx", "none"): 1,
    }


async def test_request_ids_are_echoed_or_made() -> None:
    edge = make_edge(request_id_headers=True)
    echoed = await ask(edge, "GET", "/health", **{"x-request-id": "abc"})
    made = await ask(edge, "GET", "/health")

    assert echoed.headers["x-request-id"] == "abc"
    assert len(bytes.fromhex(made.headers["x-request-id"])) == 16
