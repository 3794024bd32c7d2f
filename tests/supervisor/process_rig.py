"""Children that misbehave, and looks at what is left of them."""

import contextlib
import gc
import os
import signal
import sys
import textwrap
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

START_BUDGET = 20.0
"""Seconds; two interpreters start, on a machine that may be busy."""

END_BUDGET = 5.0
"""Seconds after which nothing may be left of a family whose owner was killed."""

FAMILY = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    own = [os.getpid()]
    if (child := os.fork()) == 0:
        os.setsid()
        if (grandchild := os.fork()) != 0:
            own = [os.getpid(), grandchild]
            open(sys.argv[1], "a").write(" ".join(map(str, own)) + "\\n")
        time.sleep(600)
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
    time.sleep(600)
"""
"""Three processes in two sessions that all ignore SIGTERM, and write their ids to a file."""


def script(source: str, *args: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(source), *args]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descriptors() -> list[str]:
    gc.collect()  # what earlier tests left to the collector would close in between
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def children() -> set[int]:
    """List our children; each belongs to the thread that started it."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in files for pid in file.read_text().split()}


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


async def wait_for(condition: Callable[[], bool], seconds: float = START_BUDGET) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - other processes set no event
            await trio.sleep(0.01)


async def wait_for_family(ids: Path) -> list[int]:
    await wait_for(lambda: len(pids_in(ids)) == 3)
    return pids_in(ids)


async def wait_gone(pids: list[int]) -> None:
    await wait_for(lambda: not any(map(alive, pids)), END_BUDGET)


@asynccontextmanager
async def program(source: str, *args: str) -> AsyncGenerator[trio.Process]:
    """Run a program that imports from this project; it is killed at the end of the block."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", textwrap.dedent(source), *args]
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        with trio.move_on_after(END_BUDGET, shield=True):
            await process.wait()
