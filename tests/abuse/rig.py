"""Whole frontends as processes, engines that remember, and clients that speak bytes."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.lowlevel
import zmq

from tests.lifecycles.rig import TINY_CHAT
from vllmfront.engine.wire import Abort, Add, StartWave, Utility, decode_request
from vllmfront.simulator import SimulatedEngine, SimulatorConfig

BUDGET = 60.0
"""Seconds that no single wait needs on a machine that is not overloaded."""

MIB = 1024 * 1024
RSS_SLACK = 24 * MIB
"""What a process may have gained that has answered some requests: allocators keep pages."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG = {"prompt": "hi", "max_tokens": 50_000, "ignore_eos": True}
"""A completion that does not end while a test looks at it."""

_LISTENING = re.compile(r"listening on \S*?127\.0\.0\.1\]?:(\d+)")
_HANDSHAKE = re.compile(r"waiting for \d+ engine\(s\) at (tcp://\S+)")
_ENDS = re.compile(r'^vllmfront:request_ends_total\{cause="(\w+)"\} (\S+)$', re.MULTILINE)
_GAUGES = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", re.MULTILINE)


@attrs.define
class Answer:
    """What came back on a connection, taken apart."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        message: str = self.json["error"]["message"]
        return message


def parse_answer(data: bytes) -> Answer:
    """Take one whole answer apart; chunked bodies are joined."""
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(_chunks(body))
    return Answer(int(status.split(" ")[1]), headers, body)


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        yield rest[:count]
        body = rest[count + 2 :]


def post(path: str, body: bytes | dict[str, Any], *headers: str, close: bool = True) -> bytes:
    """Return a POST of JSON as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *(["Connection: close"] if close else []),
        *headers,
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


def get(path: str, *headers: str) -> bytes:
    """Return a GET as bytes; the connection ends with its answer."""
    lines = [f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


class Client:
    """One connection that sends what it is told, and reads when it is told."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.socket = sock
        self._buffer = bytearray()

    @property
    def received(self) -> bytes:
        return bytes(self._buffer)

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[await self.socket.send(view) :]

    async def read(self) -> bytes:
        try:
            data = await self.socket.recv(1 << 16)
        except ConnectionResetError:
            return b""
        self._buffer += data
        return data

    async def read_until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            if not await self.read():
                raise EOFError(self._buffer[-2000:])
        return self.received

    async def read_all(self) -> bytes:
        while await self.read():
            pass
        return self.received

    def close(self, *, reset: bool = False) -> None:
        if reset and self.socket.fileno() >= 0:
            linger = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()


@attrs.frozen
class Books:
    """What a process holds at one moment."""

    descriptors: int
    rss: int
    """Resident memory, bytes."""

    ends: dict[str, int]
    """Requests that have ended, by cause."""


@attrs.define(eq=False)
class Frontend:
    """A frontend in a process of its own."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0
    handshake: str = ""
    key: tuple[str, ...] = ()
    """Headers that let the rig itself in."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def log_text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    # Clients

    @asynccontextmanager
    async def connect(self, *, receive_buffer: int | None = None) -> AsyncGenerator[Client]:
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client = Client(sock)
        try:
            await sock.connect(("127.0.0.1", self.port))
            yield client
        finally:
            client.close()

    async def ask(self, data: bytes) -> Answer:
        """Send one request on a connection of its own; return its answer."""
        return parse_answer(await self.exchange(data))

    async def exchange(self, data: bytes) -> bytes:
        """Send *data* on a connection of its own; return all that comes back."""
        async with self.connect() as client:
            with contextlib.suppress(OSError):  # refused before all was sent
                await client.send(data)
            return await client.read_all()

    async def post(self, path: str, body: bytes | dict[str, Any], *headers: str) -> Answer:
        return await self.ask(post(path, body, *headers))

    async def get(self, path: str, *headers: str) -> Answer:
        return await self.ask(get(path, *headers))

    async def health(self) -> int:
        return (await self.get("/health")).status

    async def wait_health(self, status: int) -> None:
        await until_async(lambda: self._has_health(status))

    async def _has_health(self, status: int) -> bool:
        return await self.health() == status

    async def wait_load(self, number: int) -> None:
        """Wait until that many requests are in flight."""
        await until_async(lambda: self._has_load(number))

    async def _has_load(self, number: int) -> bool:
        load: int = (await self.get("/load", *self.key)).json["server_load"]
        return load == number

    async def check_works(self) -> None:
        """Ask for three tokens, and get them."""
        answer = await self.post(COMPLETIONS, {"prompt": "hi", "max_tokens": 3, "ignore_eos": True})

        assert answer.status == 200, answer
        assert answer.json["usage"]["completion_tokens"] == 3

    # Books

    async def ends(self) -> dict[str, int]:
        """Return how many requests have ended, by cause."""
        text = (await self.get("/metrics")).body.decode()
        found = re.findall(
            r'^vllmfront:request_ends_total\{cause="(\w+)"\} (\S+)$', text, re.MULTILINE
        )
        return {cause: int(float(count)) for cause, count in found}

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208 (a count)

    def rss(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    async def books(self) -> Books:
        """Take stock, once no connection but ours has anything to do."""
        ends = await self.ends()
        await trio.lowlevel.checkpoint()
        return Books(self.descriptors(), self.rss(), ends)

    async def settle(self, base: Books, *, rss_slack: int = RSS_SLACK) -> Books:
        """Wait until all is back at *base*; return the books then.

        Raises:
            AssertionError: Something is left over.
        """
        with trio.move_on_after(10.0):
            await self.wait_load(0)
            await until(lambda: self.descriptors() <= base.descriptors)
            await until(lambda: self.rss() <= base.rss + rss_slack)
        now = await self.books()

        assert await self._has_load(0)
        assert now.descriptors <= base.descriptors
        assert now.rss <= base.rss + rss_slack
        metrics = (await self.get("/metrics")).body.decode()
        for gauge in re.findall(
            r"^vllm:num_requests_(?:running|waiting)\{.*", metrics, re.MULTILINE
        ):
            assert float(gauge.rpartition(" ")[2]) >= 0
        return now


@contextlib.contextmanager
def running_frontend(
    folder: Path,
    *flags: str,
    environment: dict[str, str] | None = None,
    descriptor_limit: int | None = None,
    wait: bool = True,
) -> Iterator[Frontend]:
    """Run ``vllmfront serve`` for external engines; afterwards it is stopped, and must be."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "frontend.log"
    command = [
        sys.executable, "-m", "vllmfront", "serve", str(TINY_CHAT), "--port", "0",
        "--served-model-name", "tiny", *flags,
    ]  # fmt: skip
    if "--python" not in flags:
        command += ["--data-parallel-size-local", "0"]
    if descriptor_limit is not None:
        command = ["sh", "-c", f'ulimit -n {descriptor_limit}; exec "$@"', "sh", *command]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | (environment or {})
        )
    frontend = Frontend(process, log)
    try:
        if wait:
            _wait_listening(frontend, external="--python" not in flags)
        yield frontend
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _wait_listening(frontend: Frontend, *, external: bool) -> None:
    deadline = time.monotonic() + BUDGET
    while time.monotonic() < deadline and frontend.process.poll() is None:
        text = frontend.log_text()
        port, handshake = _LISTENING.search(text), _HANDSHAKE.search(text)
        if port and (handshake or not external):
            frontend.port = int(port[1])
            frontend.handshake = handshake[1] if handshake else ""
            return
        time.sleep(0.02)
    raise AssertionError(f"the frontend did not come up:\n{frontend.log_text()[-4000:]}")


class Engine(SimulatedEngine):
    """A simulated engine that remembers what it was asked, and when."""

    def __init__(self, config: SimulatorConfig, rank: int = 0) -> None:
        super().__init__(config, rank)
        self.heard: list[tuple[float, Add | Abort | Utility | StartWave]] = []

    def _take(self, frames: list[memoryview]) -> None:
        self.heard.append((trio.current_time(), decode_request(frames)))
        super()._take(frames)

    async def run(  # noqa: ASYNC128  # ``serve`` does
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled, on sockets of its own."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            await self.serve(context, task_status=task_status)
        finally:
            context.destroy(linger=0)

    @property
    def adds(self) -> list[Add]:
        return [message for _, message in self.heard if isinstance(message, Add)]

    @property
    def aborted(self) -> list[str]:
        """The ids that were aborted, in order, each as often as it was."""
        aborts = [message for _, message in self.heard if isinstance(message, Abort)]
        return [each for message in aborts for each in message.request_ids]

    @property
    def busy(self) -> int:
        return self._core.running + self._core.waiting


def engine_config(frontend: Frontend, **fields: Any) -> SimulatorConfig:
    """Describe an engine of *frontend* that is quick, and has room."""
    defaults = {"vocab_size": 2048, "step_time": 0.002, "max_model_len": 100_000}
    return SimulatorConfig(handshake=frontend.handshake, **{**defaults, **fields})


@asynccontextmanager
async def open_engine(frontend: Frontend, **fields: Any) -> AsyncGenerator[Engine]:
    """Join *frontend* as its engine for the block; a rank that leaves may come back."""
    engine = Engine(engine_config(frontend, **fields))
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await frontend.wait_health(200)
        yield engine
        nursery.cancel_scope.cancel(reason="the engine leaves")
    await frontend.wait_health(503)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what sets no event: other processes."""
    with trio.fail_after(BUDGET):
        while not condition():  # noqa: ASYNC110 (no event)
            await trio.sleep(0.005)


async def until_async(condition: Callable[[], Any]) -> None:
    with trio.fail_after(BUDGET):
        while not await condition():  # noqa: ASYNC110 (no event)
            await trio.sleep(0.005)


@contextlib.contextmanager
def engine_process(frontend: Frontend, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run an engine in a process of its own; afterwards it is killed, if it still lives."""
    command = [
        sys.executable, "-m", "vllmfront", "simulate", "--handshake", frontend.handshake,
        "--vocab-size", "2048", "--max-model-len", "100000", "--step-ms", "2", *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def events(received: bytes) -> list[str]:
    """Return the data of a stream's events, from the bytes of its whole answer."""
    body = parse_answer(received).body.decode()
    return [line.removeprefix("data: ") for line in body.split("\n\n") if line[:6] == "data: "]
