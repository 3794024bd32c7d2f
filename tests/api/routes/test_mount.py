import httpx

from tests.api.routes.test_app import Facts
from vllmfront.api.http import Router, handler_as_asgi
from vllmfront.api.metrics import HttpMetrics
from vllmfront.api.routes import open_operator_router


async def status_of(router: Router, method: str, path: str) -> int:
    transport = httpx.ASGITransport(app=handler_as_asgi(router))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.request(method, path)).status_code


async def test_operator_routes_answer_behind_the_router() -> None:
    async with open_operator_router(Facts(), HttpMetrics()) as router:
        assert await status_of(router, "GET", "/health") == 200
        assert await status_of(router, "PUT", "/health") == 405
        assert await status_of(router, "GET", "/nope") == 404
        assert await status_of(router, "POST", "/v1/responses") == 501
        assert await status_of(router, "POST", "/v1/responses/r1/cancel") == 501


async def test_static_routes_are_known_by_path() -> None:
    async with open_operator_router(Facts(), HttpMetrics()) as router:
        assert router.allowed("/metrics") == b"GET,HEAD"
        assert router.allowed("/v1/nope") is None


async def test_a_path_has_one_spelling() -> None:
    async with open_operator_router(Facts(), HttpMetrics()) as router:
        for path in ("//health", "/health/", "/Health", "/v1//models", "//v1/models", "/%2fhealth"):
            assert await status_of(router, "GET", path) == 404
