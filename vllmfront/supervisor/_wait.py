"""Waiting for whatever comes first."""

from collections.abc import Awaitable, Callable

import trio


async def wait_any(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when one of *waits* has; the others are cancelled.

    They must not raise: who waits then looks at what has become of each.
    """
    async with trio.open_nursery() as nursery:

        async def wait(one: Callable[[], Awaitable[object]]) -> None:
            await one()
            nursery.cancel_scope.cancel(reason="something else came first")

        for one in waits:
            nursery.start_soon(wait, one)
