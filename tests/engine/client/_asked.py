"""Requests in tasks of their own, and what became of each."""

from typing import Any

import attrs
import trio

from tests.engine._helpers import RecordingSink, request, settle, wait_lost
from vllmfront.engine import EngineClient, TerminalCause
from vllmfront.errors import EngineUnavailable, RequestInterrupted
from vllmfront.testing import FakeEngine


@attrs.define
class Asked:
    """A request in a task of its own."""

    sink: RecordingSink
    begun: bool = False
    error: Exception | None = None
    cause: TerminalCause | None = None


def ask(nursery: trio.Nursery, client: EngineClient, name: str = "r", **fields: Any) -> Asked:
    """Send a request from a task in *nursery*."""
    asked = Asked(RecordingSink())

    async def run() -> None:
        stream = client.submit(request(name, **fields), [asked.sink])

        def note() -> None:
            asked.begun = True

        stream.on_begun = note
        try:
            async with stream:
                await stream.wait_finished()
        except (EngineUnavailable, RequestInterrupted) as error:
            asked.error = error
        finally:
            asked.cause = stream.cause

    nursery.start_soon(run)
    return asked


async def two_that_wait(
    nursery: trio.Nursery, client: EngineClient, engine: FakeEngine
) -> tuple[Asked, Asked]:
    """Lose *engine* under one request, and ask for another one after it."""
    lost = ask(nursery, client)
    await engine.receive_add()
    engine.close()
    await wait_lost(client)
    new = ask(nursery, client, "new")
    await settle()
    return lost, new
