"""The supervisor's engines: nobody here starts another when one is lost."""

import logging

import attrs
import trio

from vllmfront.engine import EngineClient
from vllmfront.errors import EngineDied, VllmFrontError
from vllmfront.supervisor import Shutdown, wait_any

_LOGGER = logging.getLogger(__name__)

LOSS_GRACE = 10.0
"""Seconds that this process answers 503 after its engines are lost: the supervisor, which has
seen them end as well, usually stops it within one or two, and probes get to see why."""


@attrs.define(kw_only=True, eq=False)
class EngineWatch:
    """Waits for the loss of the engines, tells every request, and then ends the program."""

    client: EngineClient
    shutdown: Shutdown
    grace: float = LOSS_GRACE
    loss: VllmFrontError | None = attrs.field(default=None, init=False)
    """Why the engines are gone, unless the end was asked for before."""

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child; it stops last, for engines may be lost in the drain, too."""
        task_status.started()
        found: list[VllmFrontError] = []

        async def wait_lost() -> None:
            found.append(await self.client.wait_lost())

        await wait_any(stop.wait, wait_lost)
        if not found:
            return
        error = EngineDied(str(found[0]))
        self.client.give_up(error)
        if self.shutdown.requested.is_set():
            return
        self.loss = error
        _LOGGER.error(
            "the engines are lost, and this process starts none: its health is 503, and it ends "
            "in %g s unless the supervisor ends it before: %s",
            self.grace,
            error,
        )
        with trio.move_on_after(self.grace):
            await wait_any(stop.wait, self.shutdown.requested.wait)
            return
        self.shutdown.request("its engines are lost")
