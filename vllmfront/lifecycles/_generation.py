"""This process as one in a row: what it took over from the one before, and leaves to the next."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.api.http import HttpServer, Listener
from vllmfront.control import ControlPlane
from vllmfront.engine import EngineClient, EngineLegacy, Inheritance
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles._custody import Custodies
from vllmfront.lifecycles.upgrade import (
    Estate,
    HeldListener,
    PidFile,
    Predecessor,
    UpgradePlan,
    Upgrades,
    own_command,
)
from vllmfront.supervisor import Notifier, Shutdown, wait_any

_LOGGER = logging.getLogger(__name__)

_REACH_BUDGET = 10.0
"""Seconds for engines to reconnect; they try every 100 ms."""

_IDLE_BUDGET = 60.0
"""Seconds after which a process that was replaced closes connections without a request, if their
keep-alive timeout is longer. Their clients may be about to send one, and closing would fail it;
but pools that keep connections for hours must not keep the process from ending."""


@attrs.define(kw_only=True, eq=False)
class Generation:
    """The process that serves, as its upgrade sees it (``upgrade.Frontend``)."""

    client: EngineClient
    control: ControlPlane
    listeners: Sequence[Listener]
    custody: Custodies
    shutdown: Shutdown
    notifier: Notifier
    pid_file: PidFile | None
    predecessor: Predecessor | None
    fixed: str | None = None
    """Why no other process can take the place of this one, whatever happens; None: one can."""

    ready: trio.Event = attrs.field(factory=trio.Event)
    """Set when all parts of the program are up."""

    server: HttpServer | None = None
    admin: HttpServer | None = None
    """The server for operators, where they have one."""

    files: dict[str, tuple[str, int, int]] = attrs.field(factory=dict)
    """Files of Unix sockets that another generation removes, by the names of their listeners."""

    _retired: bool = False

    @property
    def socket_files(self) -> list[str]:
        """Paths of Unix sockets for HTTP, which nobody would remove if we were killed."""
        files = [self._file_of(listener) for listener in self.listeners]
        return [file[0] for file in files if file is not None]

    def attach_server(self, server: HttpServer) -> None:
        """Take note of the server that accepts clients."""
        self.server = server

    def attach_admin(self, server: HttpServer) -> None:
        """Take note of the server that accepts operators."""
        self.admin = server

    # What an upgrade needs

    def obstacle(self) -> str | None:
        predecessor, succession = self.predecessor, self.client.succession
        if predecessor is not None and not predecessor.gone.is_set():
            return (
                f"process {predecessor.pid} still serves what it has begun; "
                "try again when it has ended"
            )
        if self.client.worker_slots is not None:
            return (
                "several processes serve clients (--api-server-count), which this version does "
                "not replace one by one; stop it and start it anew"
            )
        if not self.ready.is_set() or self.server is None:
            return "this process is starting"
        dependence = end_with_us(os.getpid(), os.environ, notified=self.notifier.enabled)
        if dependence is not None:
            return dependence
        if self.fixed is not None:
            return self.fixed
        if succession is None:
            return "the engines were told their addresses by another program"
        if missing := self.custody.missing():
            return f"an engine's process is not running: {', '.join(missing)}"
        return succession.obstacle() or self.control.obstacle()

    def estate(self) -> Estate:
        assert self.client.succession is not None
        return self._estate(self.client.succession.legacy())

    def _estate(self, legacy: EngineLegacy) -> Estate:
        succession = self.client.succession
        assert succession is not None
        return Estate(
            listeners=[
                HeldListener(
                    descriptor=each.socket.fileno(), name=each.name, unlink=self._file_of(each)
                )
                for each in self.listeners
            ],
            engines=Inheritance(
                descriptors=[each.fileno() for each in succession.entrance.listeners],
                legacy=legacy,
            ),
            processes={name: process.handle for name, process in self.custody.processes.items()},
            control=self.control.legacy(),
        )

    def _file_of(self, listener: Listener) -> tuple[str, int, int] | None:
        return listener.unlink or self.files.get(listener.name)

    async def step_aside(self) -> Estate:
        succession = self.client.succession
        assert succession is not None
        legacy = await succession.step_aside()
        self.custody.hand_over()
        for listener in self.listeners:
            if listener.unlink is not None:
                self.files[listener.name], listener.unlink = listener.unlink, None
        estate = self._estate(legacy)
        self.control.relinquish()
        return estate

    def lead(self) -> None:
        for listener in self.listeners:
            listener.unlink = self._file_of(listener)
        self.files.clear()
        if self.client.succession is not None:
            self.client.succession.lead()
        self.custody.take_back()
        self.control.take_back()
        retired, self._retired = self._retired, False
        for server in (self.server, self.admin):
            if retired and server is not None:
                server.resume()
        # A new process that died as it took over may have put its own entry there just before.
        if retired or (self.pid_file is not None and self.pid_file.is_replaced()):
            try:
                self._write_pid_file()
            except ConfigurationError as error:
                _LOGGER.error("this process serves again, but is not found: %s", error)  # noqa: TRY400 - no bug of ours

    async def retire(self, pid: int) -> None:
        assert self.server is not None
        self._retired = True
        self.server.retire()
        if self.admin is not None:
            self.admin.retire()
        await self.notifier.send(MAINPID=pid)
        self.notifier.silent = True

    async def announce(self) -> None:
        self.notifier.silent = False
        await self.notifier.send(MAINPID=os.getpid(), READY=1, STATUS="took over")

    async def wait_idle(self) -> None:
        assert self.server is not None
        while True:
            with trio.move_on_after(_IDLE_BUDGET):
                await self.server.wait_drained()
                return
            if self.server.keep_alive_timeout > _IDLE_BUDGET:
                self.server.close_idle()

    def stop(self, reason: str) -> None:
        self.shutdown.request(reason)

    # What following another process needs

    async def join(self) -> None:
        """Wait for the engines that the process before us has left; return when we may serve."""
        if self.predecessor is None:
            return
        succession = self.client.succession
        assert succession is not None
        if self.predecessor.gone.is_set():
            self.lead()
        await succession.wait_reached(_REACH_BUDGET)

    async def serve_presence(self) -> None:
        """Say that this process serves, once it does, and watch the one before until it is gone.

        Raises:
            EngineDied: The engines were lost before that, so the one before should go on.
        """
        await self.ready.wait()
        if self.predecessor is None:
            self._write_pid_file()
            return
        if not self.predecessor.gone.is_set():
            await self.client.wait_ready()
        self._write_pid_file()
        await self.predecessor.say_serving()
        self.custody.take_back()
        await self.announce()
        await self.predecessor.serve(self.shutdown, self.lead)

    def _write_pid_file(self) -> None:
        if self.pid_file is not None:
            self.pid_file.write()


class UpgradeTrigger:
    """What SIGUSR2 calls, from before there is anything to upgrade."""

    def __init__(self) -> None:
        self.upgrades: Upgrades | None = None

    def __call__(self) -> None:
        if self.upgrades is None:
            _LOGGER.warning("no upgrade now: this process is starting; it goes on")
        else:
            self.upgrades.request()


@asynccontextmanager
async def open_upgrades(generation: Generation, trigger: UpgradeTrigger) -> AsyncGenerator[None]:
    """Let this process be replaced for as long as the block runs."""
    # Until it serves, the process before us speaks for the service.
    generation.notifier.silent = generation.predecessor is not None
    await generation.join()
    upgrades = Upgrades(
        generation,
        UpgradePlan(command=own_command()),
        generation.shutdown,
        pid_file=generation.pid_file,
    )
    trigger.upgrades = upgrades
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upgrades.serve)  # noqa: ASYNC113 (waits for the block)
            nursery.start_soon(generation.serve_presence)  # noqa: ASYNC113 (waits for the block)
            yield
            nursery.cancel_scope.cancel(reason="everything has ended")
    finally:
        trigger.upgrades = None
        if generation.pid_file is not None:
            generation.pid_file.remove()


def end_with_us(pid: int, environ: Mapping[str, str], *, notified: bool) -> str | None:
    """Say who would take the end of this process for the end of the service; None: nobody."""
    if pid == 1:
        return "this is the first process of its container, which would end with it"
    if environ.get("SYSTEMD_EXEC_PID") == str(pid) and not notified:
        return (
            "systemd would take the end of this process for the end of the service; "
            "give the unit Type=notify-reload"
        )
    return None


@attrs.frozen
class PredecessorHold:
    """Keeps the engine for as long as the process before us still serves what it has begun."""

    predecessor: Predecessor
    shutdown: Shutdown

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child that stops before the engine does."""
        task_status.started()
        await wait_any(stop.wait, self.predecessor.gone.wait)
        with trio.move_on_at(self.shutdown.end):
            await wait_any(self.predecessor.gone.wait, self.shutdown.hurried.wait)
