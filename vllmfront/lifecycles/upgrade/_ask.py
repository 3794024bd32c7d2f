"""Asks a process that serves for an upgrade, and waits for what comes of it."""

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles.upgrade._pid_file import read_pid
from vllmfront.lifecycles.upgrade._report import Reports, Stage, open_reports
from vllmfront.lifecycles.upgrade._successor import UpgradeFailed

_SUCCESSION_BUDGET = 10.0
"""Seconds for a new process to serve when the one that was asked has died."""

_Outcome = str | UpgradeFailed

_POLL = 0.1
"""Seconds between two looks at the pid file."""


async def ask_upgrade(pid_file: Path, tell: Callable[[str], None], patience: float) -> str:
    """Let the process that serves with *pid_file* be replaced; return what came of it.

    Args:
        pid_file: What ``serve --pid-file`` was given; absolute.
        tell: Called with how far it is.
        patience: Seconds to wait for the outcome.

    Raises:
        ConfigurationError: No process serves with that file, or it cannot be asked.
        UpgradeFailed: The old process goes on, or it is not known what has become of it.
    """
    pid = read_pid(pid_file)
    if pid is None:
        raise ConfigurationError(f"no process serves with the pid file {pid_file}")
    with _hold_process(pid) as process, open_reports(pid_file) as reports:
        if read_pid(pid_file) != pid:
            raise ConfigurationError(f"the process of {pid_file} is just being replaced")
        try:
            signal.pidfd_send_signal(process, signal.SIGUSR2)
        except OSError as error:
            message = f"cannot send SIGUSR2 to process {pid}: {error.strerror}"
            raise ConfigurationError(message) from error
        with trio.move_on_after(patience):
            outcome = await _first(
                partial(_told, reports, tell), partial(_died, process, pid, pid_file)
            )
            if isinstance(outcome, UpgradeFailed):
                raise outcome
            return outcome
    raise UpgradeFailed(f"nothing was heard of process {pid} for {patience:g} s; see its log")


async def _first(*waits: Callable[[], Awaitable[_Outcome]]) -> _Outcome:
    outcomes: list[_Outcome] = []
    async with trio.open_nursery() as nursery:

        async def wait(one: Callable[[], Awaitable[_Outcome]]) -> None:
            outcomes.append(await one())
            nursery.cancel_scope.cancel(reason="the outcome is known")

        for one in waits:
            nursery.start_soon(wait, one)
    return outcomes[0]


async def _told(reports: Reports, tell: Callable[[str], None]) -> _Outcome:
    while True:
        report = await reports.receive()
        if report.stage is Stage.DONE:
            return report.text
        if report.stage is Stage.FAILED:
            return UpgradeFailed(report.text)
        tell(report.text)


async def _died(process: int, pid: int, pid_file: Path) -> _Outcome:
    await trio.lowlevel.wait_readable(process)
    with trio.move_on_after(_SUCCESSION_BUDGET):
        while True:
            successor = read_pid(pid_file)
            if successor is not None:
                return f"process {successor} serves; process {pid} died meanwhile"
            await trio.sleep(_POLL)
    return UpgradeFailed(f"process {pid} died, and no other one serves")


@contextmanager
def _hold_process(pid: int) -> Iterator[int]:
    """Hold a descriptor of the process, whose number another one may have later."""
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        raise ConfigurationError(f"process {pid} cannot be reached: {error.strerror}") from error
    try:
        yield process
    finally:
        os.close(process)
