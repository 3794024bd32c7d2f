"""``vllmfront serve`` as a process, for the soak."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos._asks import MODEL
from tests.chaos._oracle import TINY_CHAT
from tests.chaos._proc import descendants, is_alive
from vllmfront.testing import Exchange, HttpCall, exchange

HOST = "127.0.0.1"
POLL_SECONDS = 0.05

START_SECONDS = 60.0
"""For a start on a machine where much else runs."""

STOP_SECONDS = 10.0

ADMIN_KEY = "chaos"

STALL_TIMEOUT = "3"
"""Seconds of silence after which an engine counts as stalled, and no new request goes there."""


@attrs.define
class Frontend:
    """A frontend that runs, or has ended when it should not."""

    process: trio.Process
    log: Path
    port: int = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def handshake(self) -> str | None:
        """Return where engines say HELLO, once that is known."""
        found = re.search(r"waiting for \d+ engine\(s\) at (\S+)", self.text())
        return None if found is None else found[1]

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    async def get(self, path: str) -> Exchange:
        key = {"authorization": f"Bearer {ADMIN_KEY}"}
        return await exchange(HOST, self.port, HttpCall(path=path, method="GET", headers=key))

    async def inside(self) -> dict[str, Any]:
        """Return what runs inside."""
        found: dict[str, Any] = json.loads((await self.get("/supervisor")).body)
        return found

    async def health(self) -> int | None:
        return (await self.get("/health")).status

    async def metrics(self) -> dict[str, dict[str, float]]:
        """Return all samples by name, then by their labels as text."""
        found: dict[str, dict[str, float]] = {}
        text = (await self.get("/metrics")).body.decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
        return found


@asynccontextmanager
async def open_frontend(
    log: Path,
    options: Sequence[str],
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> AsyncGenerator[Frontend]:
    """Serve for the block; afterwards nothing that was started is left, or that is an error.

    Raises:
        RuntimeError: The frontend does not begin to listen, or leaves processes behind.
    """
    words = [python, "-m", "vllmfront", "serve", str(TINY_CHAT), "--host", HOST, "--port", "0"]
    words += ["--served-model-name", MODEL, "--admin-api-key", ADMIN_KEY]
    words += ["--engine-stall-timeout", STALL_TIMEOUT, *options]
    with log.open("wb") as output:
        process = await trio.lowlevel.open_process(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
    frontend = Frontend(process, log)
    below: list[int] = []
    try:
        await _wait_listening(frontend)
        yield frontend
    finally:
        below = descendants(process.pid)
        process.terminate()
        with trio.move_on_after(STOP_SECONDS, shield=True):
            await process.wait()
        process.kill()
        with trio.move_on_after(STOP_SECONDS, shield=True):
            await process.wait()
            while any(map(is_alive, below)):  # noqa: ASYNC110 (other processes set no event)
                await trio.sleep(POLL_SECONDS)
    if left := [pid for pid in below if is_alive(pid)]:
        raise RuntimeError(f"the frontend left processes behind: {left}")


async def _wait_listening(frontend: Frontend) -> None:
    with trio.move_on_after(START_SECONDS):
        while frontend.process.poll() is None:
            found = re.search(r"listening on http://\S+:(\d+)\n", frontend.text())
            if found is not None:
                frontend.port = int(found[1])
                return
            await trio.sleep(POLL_SECONDS)
    raise RuntimeError(f"the frontend does not listen: {frontend.text()[-2000:]}")
