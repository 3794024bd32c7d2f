"""Operator routes before their app is there."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.routes.test_app import Facts
from vllmfront.api.http import Router, handler_as_asgi
from vllmfront.api.metrics import HttpMetrics
from vllmfront.api.routes import open_operator_router


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Let the app's libraries look as if they had never been imported; set when they are."""
    event = trio.Event()
    monkeypatch.delitem(sys.modules, "quart")
    monkeypatch.setattr(
        "vllmfront.api.routes._mount._import_app", lambda: trio.from_thread.run_sync(event.set)
    )
    return event


@asynccontextmanager
async def router() -> AsyncGenerator[tuple[Router, httpx.AsyncClient]]:
    async with open_operator_router(Facts(), HttpMetrics()) as found:
        transport = httpx.ASGITransport(app=handler_as_asgi(found))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield found, client


async def test_probes_do_not_ask_for_the_app(imported: trio.Event) -> None:
    async with router() as (_, client):
        answer = await client.get("/health")

        assert answer.status_code == 200
        assert not imported.is_set()


async def test_a_request_for_the_app_waits_for_it(imported: trio.Event) -> None:
    async with router() as (_, client):
        with trio.fail_after(10):
            version = await client.get("/version")
            missing = await client.get("/nothing/of/the/kind")

    assert imported.is_set()
    assert version.json()["version"] == "0.33.0"
    assert missing.status_code == 404


async def test_the_routes_of_the_app_are_known_before_it(imported: trio.Event) -> None:
    async with router() as (found, client):
        refused = await client.delete("/metrics")

        assert refused.status_code == 405
        assert refused.headers["allow"] == (found.allowed("/metrics") or b"").decode()
        assert not imported.is_set()


async def test_the_app_is_loaded_unasked_a_moment_later(
    imported: trio.Event, mock_clock: MockClock
) -> None:
    async with router():
        await wait_all_tasks_blocked()
        mock_clock.jump(0.9)
        await wait_all_tasks_blocked()
        early = imported.is_set()
        mock_clock.jump(0.2)
        with trio.fail_after(10):
            await imported.wait()

    assert not early


async def test_who_cannot_wait_finds_the_app_there(imported: trio.Event) -> None:
    with trio.fail_after(10):
        async with open_operator_router(Facts(), HttpMetrics(), at_once=True):
            assert imported.is_set()
