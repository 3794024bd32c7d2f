"""Replaces the running process by a new one, or goes on as if nothing had been asked.

=============  ============================================================================
the old one    the new one
=============  ============================================================================
serves         is started, gets all descriptors, loads the model's files, says *prepared*
steps aside    takes the free slot of the engines, the handshake and the managed process
serves on      waits until the engines are connected, accepts clients, says *serving*
retires        serves; the old one says *close* with each response and leaves with the last
leaves         takes the slot that is free now
=============  ============================================================================

Either may die at any moment: the other one notices, has everything, and goes on alone.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import trio

from vllmfront.errors import VllmFrontError
from vllmfront.lifecycles.upgrade._estate import Estate
from vllmfront.lifecycles.upgrade._messages import MessageKind
from vllmfront.lifecycles.upgrade._pid_file import PidFile
from vllmfront.lifecycles.upgrade._report import Reporter, Stage
from vllmfront.lifecycles.upgrade._successor import Successor, UpgradeFailed, open_successor
from vllmfront.supervisor import Shutdown

_LOGGER = logging.getLogger(__name__)

_KILL_BUDGET = 5.0
"""Seconds for a killed process to be gone; only an uninterruptible one takes longer."""


class Frontend(Protocol):
    """What an upgrade needs of the process that serves."""

    def obstacle(self) -> str | None:
        """Say why no other process can take over now; None: one can."""

    def estate(self) -> Estate:
        """Return what a new process would need if this one died."""

    async def step_aside(self) -> Estate:
        """Leave to the new process what only one can do; serve on all the same."""

    def lead(self) -> None:
        """Do again what only one process can do, and accept clients."""

    async def retire(self, pid: int) -> None:
        """Leave all clients to come to process *pid*."""

    async def announce(self) -> None:
        """Tell the service manager that this process is the one that serves."""

    async def wait_idle(self) -> None:
        """Return once the last client has been served."""

    def stop(self, reason: str) -> None:
        """End this process."""


@attrs.frozen(kw_only=True)
class UpgradePlan:
    """How a new process is started, and how long it may take."""

    command: Sequence[str]
    environment: Mapping[str, str] = attrs.field(factory=lambda: os.environ, repr=False)
    load_budget: float = 600.0
    """Seconds for the new process to load the model's files, which may have to be fetched."""

    take_over_budget: float = 60.0
    """Seconds from stepping aside until it serves; engines reconnect within one."""


class Upgrades:
    """One upgrade after the other, as they are asked for; ``serve`` is its task."""

    def __init__(
        self,
        frontend: Frontend,
        plan: UpgradePlan,
        shutdown: Shutdown,
        *,
        pid_file: PidFile | None = None,
    ) -> None:
        self._frontend = frontend
        self._plan = plan
        self._shutdown = shutdown
        self._pid_file = pid_file
        self._asked, self._requests = trio.open_memory_channel[Reporter](1)  # one at a time
        self._reporter: Reporter | None = None
        """Of the upgrade under way."""

        self._coming_up = trio.CancelScope()
        """Around the wait for a new process."""

        self._successor: Successor | None = None
        """The process that has taken over, while we serve what we have begun."""

    def __repr__(self) -> str:
        if self._successor is not None:
            return f"<Upgrades: process {self._successor.pid} has taken over>"
        return f"<Upgrades {'idle' if self._reporter is None else 'under way'}>"

    def request(self) -> None:
        """Begin an upgrade, or say in the log why not."""
        reporter = Reporter(None if self._pid_file is None else self._pid_file.path)
        refusal = self._refusal()
        if refusal is None:
            self._reporter = reporter
            self._asked.send_nowait(reporter)
            return
        _LOGGER.warning("no upgrade now: %s; this process goes on", refusal)
        if self._reporter is None or reporter.listener != self._reporter.listener:
            reporter.tell(Stage.FAILED, refusal)

    def _refusal(self) -> str | None:
        if self._shutdown.requested.is_set():
            return "this process is shutting down"
        if self._successor is not None:
            return f"process {self._successor.pid} has taken over; ask that one"
        if self._reporter is not None:
            return "another upgrade is under way"
        return self._frontend.obstacle()

    async def serve(self) -> None:
        """Carry out what is asked for, until cancelled, which ends an upgrade under way."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up_at_shutdown)
            async for reporter in self._requests:
                try:
                    await self._upgrade(reporter)
                except (VllmFrontError, OSError) as error:
                    _LOGGER.error("the upgrade failed, this process goes on: %s", error)  # noqa: TRY400 - no bug of ours
                    reporter.tell(Stage.FAILED, str(error))
                except Exception:
                    _LOGGER.exception("a bug in the upgrade; this process goes on")
                    reporter.tell(Stage.FAILED, "a bug in the upgrade; the log tells more")
                finally:
                    self._reporter = self._successor = None

    async def _give_up_at_shutdown(self) -> None:
        await self._shutdown.requested.wait()
        self._coming_up.cancel(reason="shutting down")

    async def _upgrade(self, reporter: Reporter) -> None:
        plan, estate = self._plan, self._frontend.estate()
        async with open_successor(plan.command, plan.environment, estate) as successor:
            serving = False
            try:
                _LOGGER.info("process %d is coming up to take over", successor.pid)
                reporter.tell(Stage.UNDER_WAY, f"process {successor.pid} is loading")
                with trio.CancelScope() as self._coming_up:
                    await self._bring_up(successor, reporter)
                    serving = True
            finally:
                if not serving:
                    with trio.move_on_after(_KILL_BUDGET, shield=True):
                        await successor.kill()
                    self._frontend.lead()
            if not serving:
                raise UpgradeFailed("this process was told to stop")
            self._successor = successor
            _LOGGER.info("process %d serves now; this one ends with its last client", successor.pid)
            try:
                await self._frontend.retire(successor.pid)
            except Exception:
                _LOGGER.exception("a bug in leaving clients to process %d", successor.pid)
                self._frontend.stop(f"process {successor.pid} has taken over")
            reporter.tell(Stage.DONE, f"process {successor.pid} serves")
            await self._serve_retired(successor)

    async def _bring_up(self, successor: Successor, reporter: Reporter) -> None:
        plan, frontend = self._plan, self._frontend
        with trio.move_on_after(plan.load_budget):
            await successor.finish_estate()
        await successor.expect(MessageKind.PREPARED, plan.load_budget, "loading the model's files")
        obstacle = frontend.obstacle()
        if obstacle is not None:
            raise UpgradeFailed(obstacle)
        reporter.tell(Stage.UNDER_WAY, f"process {successor.pid} is taking over")
        await successor.let_take_over(await frontend.step_aside())
        await successor.expect(MessageKind.SERVING, plan.take_over_budget, "taking over")

    async def _serve_retired(self, successor: Successor) -> None:
        """Serve what was begun, then end; go on where the new process dies before that."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_when_idle, successor)
            while (said := await _listen(successor)) is not None:
                if said is MessageKind.STOPPING:
                    self._frontend.stop(f"process {successor.pid}, which took over, is stopping")
            nursery.cancel_scope.cancel(reason="there is no successor any more")
        if self._shutdown.requested.is_set():
            await successor.wait_end()
            self._frontend.lead()
            return
        with trio.move_on_after(_KILL_BUDGET):
            await successor.kill()
        self._frontend.lead()
        await self._frontend.announce()
        _LOGGER.error("process %d, which took over, is gone; this one serves again", successor.pid)

    async def _leave_when_idle(self, successor: Successor) -> None:
        await self._frontend.wait_idle()
        if successor.process.poll() is None:
            self._frontend.stop(f"process {successor.pid} has taken over")


async def _listen(successor: Successor) -> MessageKind | None:
    try:
        said = await successor.listen()
    except UpgradeFailed as error:
        _LOGGER.error("%s", error)  # noqa: TRY400 - no bug of ours
        return None
    return None if said is None else said[0]
