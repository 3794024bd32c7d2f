"""The supervisor's engines: nobody here starts another when one is lost."""

import logging
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from vllmfront.engine import EngineInfo
from vllmfront.errors import EngineDied, VllmFrontError
from vllmfront.supervisor import Shutdown, wait_any

_LOGGER = logging.getLogger(__name__)

LOSS_GRACE = 10.0
"""Seconds that this process answers 503 after its engines are lost: the supervisor, which has
seen them end as well, usually stops it within one or two, and probes get to see why."""


class Engines(Protocol):
    """What the watch needs of an engine client."""

    @property
    def info(self) -> EngineInfo:
        """What the engines that have joined said about themselves."""

    async def wait_lost(self) -> VllmFrontError:
        """Return the cause once no engine is left."""

    def on_loss(self, observer: Callable[[int, VllmFrontError], None]) -> None:
        """Call *observer* with the rank of each engine that is lost, and why."""

    def give_up(self, error: VllmFrontError) -> None:
        """End what is in flight: nobody starts another engine."""


@attrs.define(kw_only=True, eq=False)
class EngineWatch:
    """Waits for the loss of the engines, tells every request, and then ends the program.

    Engines that step together are lost with the first of them: the others wait for it for ever.
    """

    client: Engines
    shutdown: Shutdown
    grace: float = LOSS_GRACE
    loss: VllmFrontError | None = attrs.field(default=None, init=False)
    """Why the engines are gone, unless the end was asked for before."""

    _cause: VllmFrontError | None = attrs.field(default=None, init=False)
    _lost: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child; it stops last, for engines may be lost in the drain, too."""
        self.client.on_loss(self._note)
        task_status.started()
        await wait_any(stop.wait, self._lost.wait, self._wait_all)
        if self._cause is None:
            return
        error = EngineDied(str(self._cause))
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

    async def _wait_all(self) -> None:
        self._cause = await self.client.wait_lost()

    def _note(self, rank: int, error: VllmFrontError) -> None:
        """Take note of one engine that is lost."""
        registration = self.client.info.registrations.get(rank)
        # Engines of a dense model say that they are the only one.
        together = registration is not None and (registration.data_parallel_size or 1) > 1
        if together and self._cause is None:
            self._cause = error
            self._lost.set()
