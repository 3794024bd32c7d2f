"""A frontend as operators run it: processes that follow each other, and engines that stay."""

import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from tests.lifecycles.rig import TINY_CHAT, alive, commanded, wait_health, wait_until
from vllmfront.lifecycles.upgrade import ask_upgrade
from vllmfront.lifecycles.upgrade._pid_file import read_pid
from vllmfront.simulator import SimulatorConfig, serve_simulator

BUDGET = 60.0
"""Seconds for a whole test on a machine that is busy."""


@attrs.define
class Answer:
    """What a client got of one stream."""

    text: str = ""
    tokens: int = 0
    finished: bool = False
    began: trio.Event = attrs.field(factory=trio.Event)


@attrs.define
class Service:
    """Whatever process serves at the moment, and how to reach it."""

    folder: Path
    http: httpx.AsyncClient
    started: trio.Process
    nursery: trio.Nursery

    @property
    def pid_file(self) -> Path:
        return self.folder / "pid"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int | None:
        """The process that serves, by the pid file."""
        return read_pid(self.pid_file)

    @property
    def handshake_address(self) -> str:
        found = re.search(r"waiting for \d+ engine\(s\) at (\S+)", self.log)
        assert found is not None
        return found[1]

    def start_engine(self, **fields: Any) -> trio.CancelScope:
        """Start an external engine; cancelling the scope kills it."""
        fields.setdefault("step_time", 0.005)
        config = SimulatorConfig(handshake=self.handshake_address, vocab_size=2048, **fields)
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await serve_simulator(config)

        self.nursery.start_soon(run)
        return scope

    async def wait_ready(self) -> None:
        await wait_health(self.http, 200)

    async def wait_log(self, text: str) -> None:
        await wait_until(lambda: text in self.log)

    async def wait_pid(self, old: int | None) -> int:
        """Return the process that serves once it is not *old* any more."""
        await wait_until(lambda: self.pid not in {None, old})
        assert self.pid is not None
        return self.pid

    async def wait_gone(self, pid: int) -> None:
        await wait_until(lambda: not alive(pid))

    async def reload(self, tell: Callable[[str], None] = lambda _text: None) -> str:
        """Ask for an upgrade as ``vllmfront reload`` does; raises as it fails."""
        return await ask_upgrade(self.pid_file, tell, BUDGET)

    async def reload_amid(self, tokens: int, count: int = 1) -> list[Answer]:
        """Let the process be replaced while streams of so many *tokens* run, and return those.

        They begin just before the new process accepts clients, however long it has loaded.
        """
        taking_over, answers = trio.Event(), list[Answer]()

        def tell(text: str) -> None:
            if "is taking over" in text:
                taking_over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_upgrade, self.pid_file, tell, BUDGET)
            await taking_over.wait()
            answers += [Answer() for _ in range(count)]
            for answer in answers:
                self.nursery.start_soon(self.stream, tokens, answer)
        return answers

    async def ask(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": "hi", **fields})

    async def stream(self, tokens: int, answer: Answer) -> None:
        """Read a greedy stream of just that many *tokens*."""
        body = {
            "prompt": "hi",
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    answer.finished = True
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    answer.text += "".join(choice["text"] for choice in event["choices"])
                    answer.tokens = (event.get("usage") or {}).get("completion_tokens", 0)
                    answer.began.set()

    async def begin_stream(self, tokens: int) -> Answer:
        """Start a stream in the background, and return once it has begun."""
        answer = Answer()
        self.nursery.start_soon(self.stream, tokens, answer)
        await answer.began.wait()
        return answer


async def wait_finished(*answers: Answer) -> None:
    await wait_until(lambda: all(answer.finished for answer in answers))


@asynccontextmanager
async def open_service(
    folder: Path,
    *arguments: str,
    model: Path = TINY_CHAT,
    external: bool = True,
    environment: Mapping[str, str] = os.environ,
    budget: float = BUDGET,
) -> AsyncGenerator[Service]:
    """Run a frontend for the block; nothing of it is left afterwards."""
    where = ("--data-parallel-size-local", "0") if external else ()
    command = [
        *(sys.executable, "-m", "vllmfront", "serve", str(model), "--port", "0"),
        *("--pid-file", str(folder / "pid"), "--served-model-name", "tiny", *where),
        # A process that was replaced ends when nobody keeps a connection any more.
        *("--http-timeout-keep-alive", "1", *arguments),
    ]
    (folder / "ipc").mkdir()
    with trio.fail_after(budget), (folder / "log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            command,
            stdout=log,
            stderr=log,
            env={**environment, "VLLM_RPC_BASE_PATH": str(folder / "ipc")},
        )
        try:
            async with trio.open_nursery() as nursery, httpx.AsyncClient(timeout=BUDGET) as http:
                service = Service(folder, http, process, nursery)
                await service.wait_pid(None)
                await service.wait_log("listening on")
                found = re.search(r"listening on (http://\S+)", service.log)
                if found is not None:
                    http.base_url = httpx.URL(found[1])
                yield service
                nursery.cancel_scope.cancel(reason="the test is over")
        finally:
            left = _end_all(folder)
            with trio.move_on_after(5, shield=True):
                await process.wait()
        assert left == []


def _end_all(folder: Path) -> Sequence[int]:
    """Kill what is left; return those that the test should have ended."""
    left = [pid for pid in commanded(str(folder)) if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left
