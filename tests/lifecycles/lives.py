"""Frontends that follow each other at one address, each after the end of the one before."""

import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from tests.lifecycles.rig import TINY_CHAT, wait_until
from vllmfront.engine.transport import host_of
from vllmfront.engine.transport._ports import listen_lasting

HOST = "127.0.0.1"


@attrs.define
class Life:
    """One process of a frontend."""

    process: trio.Process
    file: Path
    http: httpx.AsyncClient

    @property
    def log(self) -> str:
        return self.file.read_text(errors="replace")

    async def wait_log(self, text: str) -> None:
        await wait_until(lambda: text in self.log or self.process.poll() is not None)
        assert text in self.log, self.log

    async def wait_listening(self) -> None:
        await self.wait_log("listening on")
        found = re.search(r"listening on (http://\S+)", self.log)
        assert found is not None
        self.http.base_url = httpx.URL(found[1])

    async def wait_ready(self) -> None:
        await self.wait_listening()
        while (await self.http.get("/health")).status_code != 200:  # noqa: ASYNC110 (no event)
            await trio.sleep(0.02)

    async def kill(self) -> None:
        """End it as the kernel does when memory runs out."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """End it as a service manager does."""
        self.process.terminate()
        assert await self.process.wait() == 0, self.log

    async def ask(self, **fields: Any) -> httpx.Response:
        body = {"prompt": "hi", "temperature": 0, "ignore_eos": True, **fields}
        # All lives and streams have the same id: what tells them apart is up to the frontend.
        return await self.http.post("/v1/completions", json=body, headers={"X-Request-Id": "same"})

    async def text(self, tokens: int) -> str:
        """Return a greedy answer of so many *tokens*."""
        answer = await self.ask(max_tokens=tokens)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == tokens
        return str(answer.json()["choices"][0]["text"])

    async def stream(self, tokens: int, begun: trio.Event) -> None:
        """Read a stream until it, or the process, ends."""
        body = {"prompt": "hi", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        try:
            async with self.http.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        json.loads(line.removeprefix("data: "))
                        begun.set()
        except httpx.HTTPError:
            return

    async def begin_streams(self, nursery: trio.Nursery, count: int, tokens: int) -> None:
        """Have *count* streams run in *nursery*, which end with this life."""
        begun = [trio.Event() for _ in range(count)]
        for one in begun:
            nursery.start_soon(self.stream, tokens, one)
        for one in begun:
            await one.wait()


@attrs.define
class Lives:
    """The row of them; each is told the same."""

    folder: Path
    port: int
    count: int = 0
    arguments: tuple[str, ...] = ()

    @property
    def handshake_address(self) -> str:
        return f"tcp://{HOST}:{self.port}"

    @asynccontextmanager
    async def next(self) -> AsyncGenerator[Life]:
        """Start the next one; it is killed at the end of the block, if it has not ended."""
        self.count += 1
        file = self.folder / f"log-{self.count}"
        command = [
            *(sys.executable, "-m", "vllmfront", "serve", str(TINY_CHAT), "--port", "0"),
            *("--served-model-name", "tiny", "--data-parallel-size-local", "0"),
            *("--data-parallel-rpc-port", str(self.port), *self.arguments),
        ]
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        with file.open("wb") as log:
            process = await trio.lowlevel.open_process(
                command, stdout=log, stderr=log, env=environment
            )
        try:
            async with httpx.AsyncClient(timeout=60.0) as http:
                yield Life(process, file, http)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                with trio.move_on_after(5, shield=True):
                    await process.wait()


def open_lives(folder: Path, *arguments: str) -> Lives:
    """Name an address for frontends in a row."""
    with listen_lasting(HOST) as listener:
        port = host_of(listener.address)[1]
    return Lives(folder, port, arguments=arguments)
