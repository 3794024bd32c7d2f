# ruff: noqa: ARG001 - a clock is asked for because of its effect

"""What a service manager learns, through a real datagram socket."""

import logging
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from vllmfront.engine import EngineState
from vllmfront.errors import EngineDied
from vllmfront.lifecycles._service import ServiceReport, open_service
from vllmfront.supervisor import Notifier, Shutdown


@attrs.define
class Manager:
    sock: socket.socket
    path: str

    def received(self) -> list[str]:
        """Return the messages that have come, each with its lines joined by blanks."""
        messages = []
        while True:
            try:
                messages.append(" ".join(self.sock.recv(4096).decode().splitlines()))
            except BlockingIOError:
                return messages


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.setblocking(False)
        yield Manager(sock, path)


@attrs.define
class Engine:
    """An engine's state, as a client tells it."""

    state: EngineState = EngineState.LOADING
    changed: trio.Event = attrs.field(factory=trio.Event)

    def set(self, state: EngineState) -> None:
        self.state = state
        self.changed.set()
        self.changed = trio.Event()

    async def wait_state(self, predicate: Callable[[EngineState], bool]) -> EngineState:
        while not predicate(self.state):
            await self.changed.wait()
        return self.state


@attrs.define
class Rig:
    manager: Manager
    engine: Engine = attrs.field(factory=Engine)
    loaded: trio.Event = attrs.field(factory=trio.Event)
    shutdown: Shutdown = attrs.field(factory=lambda: Shutdown(budget=20.0, margin=10.0))
    stop: trio.Event = attrs.field(factory=trio.Event)

    async def told(self) -> list[str]:
        await wait_all_tasks_blocked()
        return self.manager.received()

    @asynccontextmanager
    async def reporting(self) -> AsyncGenerator[None]:
        report = ServiceReport(
            notifier=Notifier(self.manager.path),
            wait_state=self.engine.wait_state,
            loaded=self.loaded,
            shutdown=self.shutdown,
            describe=lambda: f"engine {self.engine.state.value}",
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(report.run, self.stop)
            yield
            self.stop.set()


@pytest.fixture
def rig(manager: Manager) -> Rig:
    return Rig(manager)


EXTENSION = "EXTEND_TIMEOUT_USEC=30000000"


async def test_ready_is_said_once_files_and_engine_are_there(
    rig: Rig, autojump_clock: MockClock
) -> None:
    async with rig.reporting():
        assert sorted(await rig.told()) == [EXTENSION, "STATUS=engine loading"]

        rig.engine.set(EngineState.READY)

        assert await rig.told() == ["STATUS=engine ready"]

        rig.loaded.set()

        assert await rig.told() == ["READY=1 STATUS=engine ready"]


async def test_the_engine_may_come_last_and_go_and_come_again(
    rig: Rig, autojump_clock: MockClock
) -> None:
    rig.loaded.set()
    async with rig.reporting():
        await rig.told()
        rig.engine.set(EngineState.READY)
        first = await rig.told()
        rig.engine.set(EngineState.RECOVERING)
        second = await rig.told()
        rig.engine.set(EngineState.READY)

        assert sorted(first) == ["READY=1 STATUS=engine ready", "STATUS=engine ready"]
        assert second == ["STATUS=engine recovering"]
        assert await rig.told() == ["STATUS=engine ready"]


async def test_more_time_is_asked_for_until_it_is_ready(
    rig: Rig, autojump_clock: MockClock
) -> None:
    rig.loaded.set()
    async with rig.reporting():
        await rig.told()
        for _ in range(60):
            await trio.sleep(10.0)

            assert await rig.told() == [EXTENSION]

        rig.engine.set(EngineState.READY)
        await rig.told()
        await trio.sleep(1000.0)

        assert await rig.told() == []


async def test_a_soft_stop_tells_how_long_it_may_take(rig: Rig, autojump_clock: MockClock) -> None:
    async with rig.reporting():
        await rig.told()
        rig.shutdown.request("received SIGTERM")
        await trio.sleep(5.0)
        rig.stop.set()
        told = await rig.told()
        rig.engine.set(EngineState.READY)
        rig.loaded.set()

        assert told == ["STOPPING=1 STATUS=stopping: received SIGTERM EXTEND_TIMEOUT_USEC=30000000"]
        assert await rig.told() == []


async def test_an_end_that_nobody_asked_for_is_told_as_well(
    rig: Rig, autojump_clock: MockClock
) -> None:
    async with rig.reporting():
        await rig.told()

    assert await rig.told() == ["STOPPING=1 STATUS=stopping: a part of the server failed"]


async def test_why_it_failed_is_the_last_status(manager: Manager) -> None:
    shutdown = Shutdown(budget=0.0, margin=0.0)
    environ = {"NOTIFY_SOCKET": manager.path}
    with pytest.raises(EngineDied, match="it is gone"):
        async with (
            open_service(shutdown, reload_log_level=str, environ=environ),
            trio.open_nursery(),
        ):
            raise EngineDied("it is gone")

    assert manager.received() == ["STATUS=failed: it is gone"]


async def test_the_watchdog_hears_until_the_end(
    manager: Manager, autojump_clock: MockClock
) -> None:
    shutdown = Shutdown(budget=100.0, margin=0.0)
    environ = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "10000000"}
    async with open_service(shutdown, reload_log_level=str, environ=environ):
        await trio.sleep(11.0)
        shutdown.request("enough")
        await trio.sleep(11.0)

    assert manager.received() == ["WATCHDOG=1"] * 5


async def test_a_hangup_reloads_and_tells_around_it(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shutdown = Shutdown(budget=0.0, margin=0.0)
    environ = {"NOTIFY_SOCKET": manager.path}
    async with open_service(
        shutdown, reload_log_level=lambda: "the log level is DEBUG", environ=environ
    ) as service:
        await service.notifier.send(READY=1)
        with service.reloads.offering("certificates", lambda: "reloaded certificates"):
            os.kill(os.getpid(), signal.SIGHUP)
            told: list[str] = []
            with trio.fail_after(5.0):
                while len(told) < 3:
                    told += manager.received()
                    await trio.sleep(0.001)

    assert [message.partition(" ")[0] for message in told] == ["READY=1", "RELOADING=1", "READY=1"]
    assert "received SIGHUP: the log level is DEBUG; reloaded certificates" in caplog.text
