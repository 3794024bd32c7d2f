"""Trainers as processes, seen from the soak."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import msgspec
import trio

from tests.rl_soak._task import Done, Line, News, Task

END_SECONDS = 5.0


@attrs.define
class Trainer:
    """One process at a time, and another that has been started already, to take a dead one's place:
    what it takes Python to start is nothing that is tried here."""

    log: Path
    _process: trio.Process | None = None
    _spare: trio.Process | None = None
    _lines: bytes = b""

    async def do(self, task: Task) -> Done | News:
        """Have it do *task*; a ``News`` is that it has been killed."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._spare or await self._start()
            self._spare, self._lines = await self._start(), b""
        assert process.stdin is not None
        await process.stdin.send_all(msgspec.json.encode(task) + b"\n")
        line = msgspec.json.decode(await self._receive_line(process), type=Line)
        if isinstance(line, News):
            await process.wait()
        return line

    async def _start(self) -> trio.Process:
        words = [sys.executable, "-m", "tests.rl_soak.trainer"]
        with self.log.open("ab") as errors:
            return await trio.lowlevel.open_process(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

    async def _receive_line(self, process: trio.Process) -> bytes:
        assert process.stdout is not None
        while b"\n" not in self._lines:
            data = await process.stdout.receive_some()
            if not data:
                raise RuntimeError(
                    f"a trainer ended: {self.log.read_text(errors='replace')[-2000:]}"
                )
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        return line

    async def aclose(self) -> None:
        for process in (self._process, self._spare):
            if process is not None:
                process.kill()
                with trio.move_on_after(END_SECONDS, shield=True):
                    await process.wait()


@asynccontextmanager
async def open_trainers(folder: Path, count: int) -> AsyncGenerator[list[Trainer]]:
    """Have so many trainers for the block; their processes end with it."""
    trainers = [Trainer(folder / f"trainer{number}.log") for number in range(count)]
    try:
        yield trainers
    finally:
        for trainer in trainers:
            await trainer.aclose()
