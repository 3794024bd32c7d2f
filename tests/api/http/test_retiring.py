"""A server that leaves its listeners to another one, without a client noticing."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.api.http.rig import Client, Rig, echo, ok, open_rig
from tests.api.http.test_draining import CLOSE, Gate
from vllmfront.api.http import Handler, HttpConfig, HttpServer, adopt_listener, serve_http


@asynccontextmanager
async def open_heir(rig: Rig, handler: Handler = echo) -> AsyncGenerator[HttpServer]:
    """Serve the listeners of *rig* by another server, as another process would."""
    listeners = [
        adopt_listener(listener.socket.dup().detach(), "heir") for listener in rig.listeners
    ]
    try:
        async with trio.open_nursery() as nursery:
            yield await nursery.start(serve_http, listeners, handler, HttpConfig())
            nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.close()


async def ended(client: Client) -> bool:
    return await client.read_all() == b""


async def test_the_next_response_of_a_connection_is_its_last() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        assert await client.get() == ok(b"GET / 0!")
        rig.server.retire()

        assert not rig.server.statistics().accepting
        assert await client.get(b"/last") == ok(b"GET /last 0!", CLOSE)
        assert await ended(client)
        await rig.server.wait_drained()


async def test_a_connection_is_kept_when_its_client_was_told_so() -> None:
    gate = Gate()
    async with open_rig(gate) as rig:
        client = await rig.connect()
        await client.send(b"GET /stream HTTP/1.1\r\n\r\n")
        await client.read_until(b"begun")
        rig.server.retire()
        gate.open.set()

        assert (await client.read_until(b"0\r\n\r\n")).endswith(b"done!\r\n0\r\n\r\n")
        assert await client.get(b"/last") == ok(b"GET /last 0!", CLOSE)
        assert await ended(client)


async def test_who_waits_to_be_accepted_is_the_other_servers_client() -> None:
    async def heir(request: object, response: object) -> None:
        del request
        response.respond(200, b"heir!", content_type=b"text/plain")  # type: ignore[attr-defined] # any handler

    async with open_rig(echo) as rig:
        rig.server.retire()
        client = await rig.connect()
        await client.send(b"GET / HTTP/1.1\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert rig.server.statistics().connections_total == 0
        async with open_heir(rig, heir):
            assert await client.read_until(b"!") == ok(b"heir!")
            rig.server.begin_drain()
            assert (await rig.ask(b"GET / HTTP/1.0\r\n\r\n")).endswith(b"heir!")


async def test_a_server_that_has_retired_can_go_on() -> None:
    async with open_rig(echo) as rig:
        client = await rig.connect()
        await client.get()
        rig.server.retire()
        waiting = await rig.connect()
        rig.server.resume()
        rig.server.resume()

        for each in (client, waiting):
            assert await each.get() == ok(b"GET / 0!")
        assert rig.server.statistics().accepting


@pytest.mark.parametrize("after", ["retire", "begin_drain"])
async def test_draining_is_for_good(after: str) -> None:
    async with open_rig(echo) as rig:
        rig.server.begin_drain()
        getattr(rig.server, after)()
        rig.server.resume()

        with pytest.raises(OSError, match="refused"):
            await rig.connect()
        assert not rig.server.statistics().accepting


async def test_an_idle_connection_is_kept_no_longer_than_usual() -> None:
    async with open_rig(echo, HttpConfig(keep_alive_timeout=0.05)) as rig:
        client = await rig.connect()
        await client.get()
        rig.server.retire()
        with trio.fail_after(5):
            await rig.server.wait_drained()
            assert await ended(client)


async def test_idle_connections_can_be_closed_all_the_same() -> None:
    gate = Gate()
    async with open_rig(gate, HttpConfig(keep_alive_timeout=1000.0)) as rig:
        idle, busy = await rig.connect(), await rig.connect()
        await busy.send(b"GET / HTTP/1.1\r\n\r\n")
        await gate.entered.wait()
        rig.server.retire()
        rig.server.close_idle()
        gate.open.set()

        assert rig.server.keep_alive_timeout == 1000.0
        assert await ended(idle)
        assert await busy.read_all() == ok(b"GET / 0!", CLOSE)
