"""The server as clients in the field meet it."""

import json
import ssl
from collections.abc import AsyncGenerator

import httpx
import pytest
import trio
import trustme

from tests.api.http.rig import open_rig
from vllmfront.api.http import HttpConfig, HttpRequest, ResponseWriter, Router, TlsConfig


async def answer_json(request: HttpRequest, response: ResponseWriter) -> None:
    await trio.lowlevel.checkpoint()
    response.respond(200, json.dumps({"got": json.loads(request.body)}).encode())


async def stream_events(_request: HttpRequest, response: ResponseWriter) -> None:
    response.start(200, [(b"content-type", b"text/event-stream")])
    for n in range(3):
        await trio.lowlevel.checkpoint()
        response.write(b"data: %d\n\n" % n)
    response.finish(b"data: [DONE]\n\n")


def make_router() -> Router:
    router = Router()
    router.add("POST", "/json", answer_json)
    router.add("GET", "/events", stream_events)
    return router


async def use(client: httpx.AsyncClient) -> None:
    posted = await client.post("/json", json={"text": "x" * 100_000})
    assert posted.json() == {"got": {"text": "x" * 100_000}}

    async def pieces() -> AsyncGenerator[bytes, None]:
        for piece in (b'{"a"', b": ", b"1}"):
            yield piece

    chunked = await client.post("/json", content=pieces())
    assert chunked.json() == {"got": {"a": 1}}

    async with client.stream("GET", "/events") as response:
        lines = [line async for line in response.aiter_lines()]
    assert [line for line in lines if line] == ["data: 0", "data: 1", "data: 2", "data: [DONE]"]

    missing = await client.get("/missing")
    assert (missing.status_code, missing.content) == (404, b"")
    assert (await client.head("/events")).status_code == 200
    assert (await client.put("/json")).headers["allow"] == "POST"


async def test_httpx_is_served() -> None:
    async with open_rig(make_router()) as rig:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{rig.port}") as client:
            await use(client)

        assert rig.server.statistics().connections_total == 1


async def test_httpx_is_served_over_tls() -> None:
    authority = trustme.CA()
    with authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.tempfile() as path:
        config = HttpConfig(tls=TlsConfig(certfile=path))
        context = ssl.create_default_context()
        authority.configure_trust(context)
        async with (
            open_rig(make_router(), config) as rig,
            httpx.AsyncClient(base_url=f"https://127.0.0.1:{rig.port}", verify=context) as client,
        ):
            await use(client)


@pytest.mark.parametrize("times", [100])
async def test_many_clients_at_once_are_served(times: int) -> None:
    async with open_rig(make_router()) as rig:
        limits = httpx.Limits(max_connections=20)
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{rig.port}", limits=limits) as client,
            trio.open_nursery() as nursery,
        ):

            async def ask(n: int) -> None:
                answer = await client.post("/json", json=n)
                assert answer.json() == {"got": n}

            for n in range(times):
                nursery.start_soon(ask, n)

        assert rig.server.statistics().requests_total == times
