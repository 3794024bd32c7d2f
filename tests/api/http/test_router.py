import pytest
import trio

from tests.api.http.rig import echo, ok, open_rig
from vllmfront.api.http import HttpRequest, ResponseWriter, Router


def make_router() -> Router:
    router = Router()
    router.add("GET", "/get", echo)
    router.add("POST", "/post", echo)
    router.add("GET", "/both", echo)
    router.add("POST", "/both", echo)
    return router


@pytest.mark.parametrize(
    ("request_line", "status", "allow"),
    [
        (b"GET /get", 200, None),
        (b"HEAD /get", 200, None),
        (b"POST /post", 200, None),
        (b"GET /get?query", 200, None),
        (b"POST /get", 405, b"GET,HEAD"),
        (b"FROB /get", 405, b"GET,HEAD"),
        (b"GET /post", 405, b"POST"),
        (b"HEAD /post", 405, b"POST"),
        (b"PUT /both", 405, b"GET,HEAD,POST"),
        (b"GET /none", 404, None),
        (b"GET /get/", 404, None),
        (b"GET //get", 404, None),
    ],
)
async def test_routes(request_line: bytes, status: int, allow: bytes | None) -> None:
    async with open_rig(make_router()) as rig:
        answer = await rig.ask(request_line + b" HTTP/1.1\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert (allow is not None) is (b"\r\nallow: " in answer)
    if allow is not None:
        assert b"\r\nallow: %b\r\n" % allow in answer
    if status != 200:
        assert b"\r\ncontent-length: 0\r\n" in answer
        assert b"content-type" not in answer


async def test_the_fallback_gets_unknown_paths_only() -> None:
    async def fallback(_request: HttpRequest, response: ResponseWriter) -> None:
        await trio.lowlevel.checkpoint()
        response.respond(200, b"fallen back!", content_type=b"text/plain")

    router = Router(fallback=fallback)
    router.add("GET", "/get", echo)
    async with open_rig(router) as rig:
        client = await rig.connect()

        assert await client.get(b"/any") == ok(b"fallen back!")
        assert await client.get(b"/get") == ok(b"GET /get 0!")


def test_a_route_has_one_handler() -> None:
    router = make_router()

    with pytest.raises(ValueError, match="GET /get has a handler already"):
        router.add("GET", "/get", echo)


def test_the_methods_of_a_path_can_be_asked_for() -> None:
    router = make_router()

    assert router.allowed("/both") == b"GET,HEAD,POST"
    assert router.allowed("/none") is None
