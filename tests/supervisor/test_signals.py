import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from vllmfront.errors import ConfigurationError
from vllmfront.supervisor import Reloads, Shutdown, SignalActions, serve_signals

BUDGET = 5.0
"""Seconds for a signal to arrive."""


@attrs.define
class Rig:
    shutdown: Shutdown
    caplog: pytest.LogCaptureFixture

    async def send(self, number: signal.Signals) -> list[str]:
        """Return the lines that the signal leaves in the log."""
        self.caplog.clear()
        os.kill(os.getpid(), number)
        with trio.fail_after(BUDGET):
            while not self.caplog.records:  # noqa: ASYNC110 - logging sets no event
                await trio.sleep(0.001)
        await wait_all_tasks_blocked()
        return [f"{record.levelname} {record.getMessage()}" for record in self.caplog.records]


@asynccontextmanager
async def signals(
    caplog: pytest.LogCaptureFixture, actions: SignalActions | None = None
) -> AsyncGenerator[Rig]:
    caplog.set_level(logging.INFO)
    rig = Rig(Shutdown(budget=100.0, margin=100.0), caplog)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_signals, rig.shutdown, actions)
        yield rig
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_is_soft_the_second_hard_and_the_third_known(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    async with signals(caplog) as rig:
        name, shutdown = number.name, rig.shutdown
        first = await rig.send(number)

        assert shutdown.requested.is_set()
        assert not shutdown.hurried.is_set()
        assert shutdown.reason == f"received {name}"
        assert first == [f"INFO shutting down: received {name}; running work may take 100 s"]

        second = await rig.send(number)

        assert shutdown.hurried.is_set()
        assert second == [f"INFO shutting down at once: received {name}"]
        assert await rig.send(number) == [f"INFO received {name}: already shutting down at once"]


async def test_a_hangup_reloads_what_is_there_to_reload(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> str:
        raise ConfigurationError("rubbish")

    reloads = Reloads()
    async with signals(caplog, SignalActions(reloads=reloads)) as rig:
        nothing = await rig.send(signal.SIGHUP)
        with reloads.offering("certificates", lambda: "reloaded a"):
            good = await rig.send(signal.SIGHUP)
            with reloads.offering("levels", fail):
                bad = await rig.send(signal.SIGHUP)
        again = await rig.send(signal.SIGHUP)

        assert not rig.shutdown.requested.is_set()

    assert nothing == again == ["INFO received SIGHUP: there is nothing to reload"]
    assert good == ["INFO received SIGHUP: reloaded a"]
    assert bad == ["ERROR received SIGHUP: reloaded a; keeping the former levels: rubbish"]


async def test_a_bug_in_a_reload_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    reloads = Reloads()
    async with signals(caplog, SignalActions(reloads=reloads)) as rig:
        with reloads.offering("levels", lambda: str(1 / 0)):
            lines = await rig.send(signal.SIGHUP)

        assert lines == [
            "ERROR a bug in reloading levels",
            "ERROR received SIGHUP: keeping the former levels",
        ]
        assert caplog.records[0].exc_info
        assert await rig.send(signal.SIGHUP) == ["INFO received SIGHUP: there is nothing to reload"]


async def test_somebody_may_be_told_around_a_reload(caplog: pytest.LogCaptureFixture) -> None:
    order = []

    async def around(reload: Callable[[], None]) -> None:
        await trio.lowlevel.checkpoint()
        order.append("before")
        reload()
        order.append("after")

    def reload() -> str:
        order.append("reload")
        return "reloaded"

    reloads = Reloads()
    async with signals(caplog, SignalActions(reloads=reloads, around_reload=around)) as rig:
        with reloads.offering("it", reload):
            await rig.send(signal.SIGHUP)

    assert order == ["before", "reload", "after"]


async def test_a_hand_over_is_started_each_time(caplog: pytest.LogCaptureFixture) -> None:
    started = []
    async with signals(caplog, SignalActions(hand_over=lambda: started.append(1))) as rig:
        for _ in range(2):
            assert await rig.send(signal.SIGUSR2) == [
                "INFO received SIGUSR2: handing over to a new process"
            ]
        assert started == [1, 1]

        rig.shutdown.request("enough")

        assert await rig.send(signal.SIGUSR2) == [
            "WARNING received SIGUSR2: shutting down already, no new process is started"
        ]
        assert started == [1, 1]


async def test_without_anybody_to_hand_over_to_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with signals(caplog) as rig:
        [line] = await rig.send(signal.SIGUSR2)

        assert line == (
            "WARNING received SIGUSR2: nothing is configured that could take over; "
            "this process goes on"
        )
        assert not rig.shutdown.requested.is_set()
