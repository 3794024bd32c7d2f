"""A frontend that only notes what is done to it, and new processes that say what a test wants."""

import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from vllmfront.engine import EngineLegacy, Inheritance
from vllmfront.lifecycles.upgrade import Estate, HeldListener, PidFile, UpgradePlan, Upgrades
from vllmfront.lifecycles.upgrade._report import Reports, open_reports
from vllmfront.supervisor import Shutdown

SPEAK = """
import json, os, socket, sys, time

line = socket.socket(fileno=int(os.environ["VLLMFRONT_UPGRADE_FD"]))

def hear():
    data, descriptors, _, _ = socket.recv_fds(line, 65536, 16)
    message = json.loads(data)
    assert message["descriptors"] == len(descriptors) == 2, (message, descriptors)
    return message["kind"]

def say(kind, **fields):
    line.send(json.dumps({"kind": kind, "descriptors": 0, **fields}).encode() + b"\\n")

"""
"""What every new process begins with; standard library only, so that it starts at once."""

PREPARED = 'assert hear() == "estate"; say("prepared")'
SERVING = PREPARED + '; assert hear() == "take over"; say("serving")'
SLEEP = "; time.sleep(60)"


@attrs.define
class FakeFrontend:
    """Notes the calls of an upgrade."""

    shutdown: Shutdown
    calls: list[str] = attrs.field(factory=list)
    obstacles: list[str | None] = attrs.field(factory=list)
    """What is in the way, one a question; then nothing is."""

    fail_at: str | None = None
    """The call that has a bug."""

    idle: trio.Event = attrs.field(factory=trio.Event)
    retired_for: int = 0

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fail_at:
            raise ZeroDivisionError

    def obstacle(self) -> str | None:
        return self.obstacles.pop(0) if self.obstacles else None

    def estate(self) -> Estate:
        legacy = EngineLegacy(slot=1, registrations={}, lost={})
        return Estate(
            listeners=[HeldListener(descriptor=0, name="http")],
            engines=Inheritance(descriptors=[1], legacy=legacy),
        )

    async def step_aside(self) -> Estate:
        await trio.lowlevel.checkpoint()
        self.note("step aside")
        return self.estate()

    def lead(self) -> None:
        self.calls.append("lead")

    async def retire(self, pid: int) -> None:
        await trio.lowlevel.checkpoint()
        self.retired_for = pid
        self.note("retire")

    async def announce(self) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_idle(self) -> None:
        await self.idle.wait()

    def stop(self, reason: str) -> None:
        self.calls.append(f"stop: {reason}")
        self.shutdown.request(reason)


@attrs.define
class Stage:
    """Upgrades of a fake frontend."""

    frontend: FakeFrontend
    upgrades: Upgrades
    reports: Reports
    shutdown: Shutdown
    nursery: trio.Nursery

    async def told(self) -> str:
        """Return what is told next, with how far that is."""
        report = await self.reports.receive()
        return f"{report.stage.value}: {report.text}"

    async def outcome(self) -> str:
        """Return what is told last, without the number of the process."""
        while (told := await self.told()).startswith("under way"):
            pass
        words = told.split()
        if "process" in words:
            del words[words.index("process") + 1]
        return " ".join(words)

    async def called(self, *calls: str) -> None:
        """Wait until exactly that was done."""
        while self.frontend.calls != list(calls):
            assert self.frontend.calls == list(calls)[: len(self.frontend.calls)]
            await trio.sleep(0.005)

    async def end_successor(self) -> None:
        """Kill the process that has taken over, and wait until that was seen."""
        assert self.frontend.retired_for > 0
        os.kill(self.frontend.retired_for, signal.SIGKILL)
        await self.leading_again()

    async def leading_again(self) -> None:
        while self.frontend.calls[-1] != "lead":  # noqa: ASYNC110 (a list has no event)
            await trio.sleep(0.005)


@asynccontextmanager
async def open_stage(
    folder: Path,
    script: str = "",
    *,
    command: Sequence[str] | None = None,
    load_budget: float = 20.0,
    take_over_budget: float = 20.0,
) -> AsyncGenerator[Stage]:
    """Let upgrades start *script*, for the block."""
    shutdown = Shutdown(budget=0, margin=0)
    frontend = FakeFrontend(shutdown)
    plan = UpgradePlan(
        command=command or [sys.executable, "-I", "-S", "-c", SPEAK + script],
        environment=os.environ,
        load_budget=load_budget,
        take_over_budget=take_over_budget,
    )
    pid_file = folder / "pid"
    upgrades = Upgrades(frontend, plan, shutdown, pid_file=PidFile(pid_file))
    with trio.fail_after(20), open_reports(pid_file) as reports:
        async with trio.open_nursery() as nursery:
            # It waits for what the test asks for.
            nursery.start_soon(upgrades.serve)  # noqa: ASYNC113
            yield Stage(frontend, upgrades, reports, shutdown, nursery)
            nursery.cancel_scope.cancel(reason="the test is over")
