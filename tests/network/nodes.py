"""A deployment over several hosts: frontends and stand-in engines, and what clients get of it."""

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import trio

from tests.lifecycles.rig import TINY_CHAT
from tests.network.hosts import Host

PORT = 29550
STEP_MS = 10
KILL_SECONDS = 5.0


@attrs.define
class Answer:
    """What a client has got of one stream."""

    text: str = ""
    finished: bool = False
    error: str = ""
    began: trio.Event = attrs.field(factory=trio.Event)
    last_token: float = 0.0
    longest_gap: float = 0.0

    def note_token(self) -> None:
        now = trio.current_time()
        if self.began.is_set():
            self.longest_gap = max(self.longest_gap, now - self.last_token)
        self.last_token = now
        self.began.set()


@attrs.define(eq=False)
class Node:
    """A frontend on one host, reached over a Unix socket."""

    host: Host
    file: Path
    process: trio.Process
    http: httpx.AsyncClient

    @property
    def log(self) -> str:
        return self.file.read_text(errors="replace")

    async def wait_log(self, text: str, count: int = 1, seconds: float = 60.0) -> float:
        """Return after how many seconds *text* stands in the log *count* times."""
        began = trio.current_time()
        with trio.move_on_after(seconds):
            while self.log.count(text) < count:
                assert self.process.poll() is None, self.log
                await trio.sleep(0.05)
            return trio.current_time() - began
        raise AssertionError(f"no {text!r} within {seconds} s:\n{self.log}")

    async def wait_ready(self) -> None:
        with trio.fail_after(60):
            while True:
                try:
                    if (await self.http.get("/health")).status_code == 200:
                        return
                except httpx.HTTPError:
                    assert self.process.poll() is None, self.log
                await trio.sleep(0.05)

    async def text(self, tokens: int, rank: int | None = None) -> str:
        """Return a greedy answer of so many *tokens*, of *rank* or of any."""
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        answer = await self.http.post("/v1/completions", json=body(tokens), headers=headers)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    async def stream(self, tokens: int, answer: Answer, rank: int | None = None) -> None:
        """Read a greedy stream of so many *tokens*."""
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        asked = {**body(tokens), "stream": True}
        async with self.http.stream(
            "POST", "/v1/completions", json=asked, headers=headers
        ) as response:
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    answer.finished = True
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    answer.error += str(event.get("error", ""))
                    answer.text += "".join(each["text"] for each in event.get("choices", ()))
                    answer.note_token()

    async def begin_stream(
        self, nursery: trio.Nursery, tokens: int, rank: int | None = None
    ) -> Answer:
        """Start a stream in *nursery*, and return once it has begun."""
        answer = Answer()
        nursery.start_soon(self.stream, tokens, answer, rank)
        await answer.began.wait()
        return answer


def body(tokens: int) -> dict[str, object]:
    return {"prompt": "hi", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}


@asynccontextmanager
async def open_node(folder: Path, host: Host, *arguments: str) -> AsyncGenerator[Node]:
    """Run a frontend on *host* for the block."""
    socket, file = folder / f"{host.address}.sock", folder / f"{host.address}.log"
    words = [
        *(sys.executable, "-m", "vllmfront", "serve", str(TINY_CHAT), "--uds", str(socket)),
        *("--served-model-name", "tiny", "--request-recovery-wait", "120", *arguments),
    ]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    with file.open("ab") as log:
        process = await host.start(*words, log=log, environment=environment)
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://node", timeout=120.0
        ) as http:
            yield Node(host, file, process, http)
    finally:
        with trio.move_on_after(KILL_SECONDS, shield=True):
            await kill(process)


@asynccontextmanager
async def open_engines(
    folder: Path, host: Host, meeting: Host, start: int, *arguments: str
) -> AsyncGenerator[trio.Process]:
    """Run stand-in engines on *host* for the block, from rank *start* on."""
    words = [
        *(sys.executable, "-m", "vllmfront", "simulate"),
        *("--handshake", f"tcp://{meeting.address}:{PORT}", "--start-rank", str(start)),
        *("--vocab-size", "2048", "--step-ms", str(STEP_MS), *arguments),
    ]
    with (folder / f"engine-{start}.log").open("ab") as log:
        process = await host.start(*words, log=log)
    try:
        yield process
    finally:
        with trio.move_on_after(KILL_SECONDS, shield=True):
            await kill(process)


async def kill(process: trio.Process) -> None:
    """End it at once, as a power failure does."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    await process.wait()
