"""Frontends and engines as processes of their own, the way operators run them."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import httpx
import openai
import pytest
import trio

from tests.lifecycles.rig import alive, descendants
from tests.real_engine._process import (
    ENGINE_ARGUMENTS,
    ENGINE_ENVIRONMENT,
    ROOT,
    TINY_CHAT,
    RealEngine,
    engine_python,
)
from tests.real_engine._relay import open_relay

START_SECONDS = 180.0
"""An engine takes a quarter of a minute; several at once on a busy machine take long."""

ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.02


def wait_until(condition: Callable[[], bool], seconds: float = ANSWER_SECONDS) -> None:
    """Wait for what other processes do; the test fails when they do not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"nothing of the kind happened in {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


@attrs.frozen
class Server:
    """A frontend that runs."""

    process: subprocess.Popen[bytes]
    log_file: Path
    url: str
    http: httpx.Client
    first_health: int
    """The status of ``/health`` when HTTP began to answer."""

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def handshake_address(self) -> str:
        found = re.search(r"waiting for \d+ engine\(s\) at (\S+)", self.log)
        assert found is not None
        return found[1]

    def health(self) -> int:
        return self.http.get("/health").status_code

    def wait_ready(self) -> None:
        """Wait until the frontend serves."""
        wait_until(lambda: self.health() == 200 or self.has_ended(), START_SECONDS)
        assert not self.has_ended(), self.log[-4000:]

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_end(self) -> int:
        """Return the exit status."""
        return self.process.wait(ANSWER_SECONDS)

    def descendants(self) -> list[int]:
        return descendants(self.process.pid)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=ANSWER_SECONDS
        )

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    @contextmanager
    def stream(self, tokens: int, headers: dict[str, str] | None = None) -> Generator["Stream"]:
        """Stream a completion of just that many *tokens*."""
        body = {"prompt": "hi", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        with self.http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            assert response.status_code == 200
            yield Stream(response.iter_lines())

    def metric(self, name: str, engine: int = 0) -> float:
        """Return a metric of one engine, summed over its other labels."""
        text = self.http.get("/metrics").text
        label = f'engine="{engine}"'
        lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if label in line)


@attrs.frozen
class Stream:
    """The events of one answer."""

    lines: Iterator[str]

    def next(self) -> str:
        """Return the data of the next event."""
        while not (line := next(self.lines)).startswith("data: "):
            assert line == ""
        return line.removeprefix("data: ")

    def rest(self) -> list[str]:
        """Return the data of all events to the end."""
        return [line.removeprefix("data: ") for line in self.lines if line]


@contextmanager
def running(folder: Path, *options: str, model: Path = TINY_CHAT) -> Generator[Server]:
    """Run ``vllmfront serve`` on a free port for the block; its log goes to *folder*."""
    log_file = folder / "frontend.log"
    program = [sys.executable, "-m", "vllmfront", "serve", str(model), "--port", "0"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*program, "--served-model-name", "tiny", *options],
            cwd=ROOT,
            env=os.environ | ENGINE_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        url = _listening(process, log_file)
        # No connection is kept: after a drain there would be a race for it.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=url, timeout=ANSWER_SECONDS, limits=limits) as http:
            yield Server(process, log_file, url, http, http.get("/health").status_code)
    finally:
        below = descendants(process.pid)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ANSWER_SECONDS)
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(alive, below)), 5.0)


def _listening(process: subprocess.Popen[bytes], log_file: Path) -> str:
    def found() -> re.Match[str] | None:
        return re.search(r"listening on (http://\S+)\n", log_file.read_text(errors="replace"))

    wait_until(lambda: found() is not None or process.poll() is not None)
    match = found()
    assert match is not None, log_file.read_text(errors="replace")[-4000:]
    return match[1]


def managed_options() -> list[str]:
    """Return what makes a frontend run a real engine itself."""
    return ["--python", str(engine_python()), *ENGINE_ARGUMENTS]


def external_options(size: int = 1) -> list[str]:
    """Return what makes a frontend wait for *size* engines."""
    return ["--data-parallel-size-local", "0", "--data-parallel-size", str(size)]


@contextmanager
def relaying(engine: RealEngine, handshake: str) -> Generator[None]:
    """Let *engine* serve the frontend at *handshake*, from a thread, for the block."""
    relay = _Relay(engine, handshake)
    thread = threading.Thread(target=trio.run, args=(relay.serve,))
    thread.start()
    try:
        relay.begun.wait(START_SECONDS)
        yield
    finally:
        relay.stop()
        thread.join()


@attrs.define
class _Relay:
    engine: RealEngine
    handshake: str
    begun: threading.Event = attrs.field(factory=threading.Event)
    _token: trio.lowlevel.TrioToken | None = None
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.begun.set()
        with self._scope:
            async with open_relay(self.engine, self.handshake):
                await trio.sleep_forever()

    def stop(self) -> None:
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
