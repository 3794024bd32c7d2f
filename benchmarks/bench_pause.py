"""How long streams go on after a pause is asked for, and how soon they go on after a resume.

    python -m benchmarks.bench_pause [--streams 256] [--repeat 15] [--peer PATH]

A frontend, and vllm-rs where there is one, each before an engine stand-in of its own, take turns.
Times are those of a client, from its order on: until the last output of any stream, until
the order is answered, until the first stream goes on, and until all do. In ``keep`` mode the same
streams go on; in ``abort`` mode they end, and new ones are asked for, on the same connections, once
the resume is answered.
A step of the engine that is under way when it hears of a pause is finished first.
"""

import argparse
import contextlib
import json
import os
import pathlib
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

import attrs

ROOT = pathlib.Path(__file__).parents[1]
MODEL = ROOT / "tests" / "data" / "tiny-chat"
QUIET = 0.25
"""Seconds without any output after which there will be none."""

BETWEEN = 0.005
"""Seconds without output that show that all streams have got what came of one step. Orders are
given when all have got what came of the next one, so that they find engines at the same point."""

START_SECONDS = 60.0
PATIENCE = 20.0
"""Seconds until a measurement that makes no progress has failed."""

MAX_TOKENS = 6000
BODY = {
    "model": "tiny",
    "prompt": [300, 301, 302],
    "max_tokens": MAX_TOKENS,
    "ignore_eos": True,
    "temperature": 0.0,
    "stream": True,
}
COLUMNS = ("last output", "answered", "first goes on", "all go on")


@attrs.define
class Streams:
    """Connections with a stream on each, read as fast as data comes."""

    port: int
    selector: selectors.BaseSelector = attrs.field(factory=selectors.DefaultSelector)
    last: dict[int, float] = attrs.field(factory=dict)
    """When each stream said something the last time, by its descriptor."""

    ended: set[int] = attrs.field(factory=set)
    sockets: list[socket.socket] = attrs.field(factory=list)

    def open(self, count: int) -> None:
        """Connect, and ask for so many streams."""
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", self.port))
            self.selector.register(sock, selectors.EVENT_READ)
            self.sockets.append(sock)
        self.ask()

    def ask(self) -> None:
        """Ask for a stream on each connection."""
        self.last.clear()
        self.ended.clear()
        body = json.dumps(BODY).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        for sock in self.sockets:
            sock.sendall(head.encode() + body)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.selector.close()

    def read(self, seconds: float) -> bool:
        """Read what is there, or comes within so many seconds; tell whether anything was."""
        found = self.selector.select(seconds)
        for key, _ in found:
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            data = sock.recv(1 << 16)
            # What is no output: the head of the response, and the first chunk without text.
            if b'"text":"' in data:
                self.last[key.fd] = time.perf_counter()
            if not data:
                raise SystemExit("a stream broke")
            if b"[DONE]" in data:
                self.ended.add(key.fd)
        return bool(found)

    def going(self, since: float) -> int:
        """Count the streams that have said something after *since*."""
        return sum(last > since for last in self.last.values())

    def wait_going(self, count: int, since: float) -> float:
        """Return when *count* of them had said something after *since*."""
        deadline = time.perf_counter() + PATIENCE
        while self.going(since) < count:
            self.read(0.05)
            if time.perf_counter() > deadline:
                raise SystemExit(f"{self.going(since)} of {count} streams go on")
        return time.perf_counter()


@attrs.define
class Order:
    """A control call on a connection of its own."""

    port: int
    sock: socket.socket = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sock = socket.create_connection(("127.0.0.1", self.port))

    def send(self, path: str, streams: Streams) -> tuple[float, float]:
        """Do it, reading streams meanwhile; return when it was sent, and how long it took."""
        began = time.perf_counter()
        self.sock.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        self.sock.settimeout(0)
        while True:
            with contextlib.suppress(BlockingIOError):
                answer = self.sock.recv(1 << 16)
                break
            streams.read(0.0005)
        took = time.perf_counter() - began
        self.sock.settimeout(None)
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            raise SystemExit(f"{path}: {answer.decode()}")
        return began, took


def measure(port: int, mode: str, count: int) -> tuple[float, ...]:
    """Pause and resume *count* streams once; return milliseconds for COLUMNS."""
    streams, order = Streams(port), Order(port)
    try:
        streams.open(count)
        streams.wait_going(count, 0.0)
        streams.wait_going(count, time.perf_counter())
        while streams.read(BETWEEN):
            pass
        streams.wait_going(count, time.perf_counter())
        began, answered = order.send(f"/pause?mode={mode}&clear_cache=false", streams)
        while streams.read(QUIET):
            pass
        last = max(streams.last.values())
        if mode == "abort":
            deadline = time.perf_counter() + PATIENCE
            while len(streams.ended) < count and time.perf_counter() < deadline:
                streams.read(QUIET)
        resumed, _ = order.send("/resume", streams)
        if mode == "abort":
            streams.ask()
        streams.wait_going(1, resumed)
        first = min(time for time in streams.last.values() if time > resumed)
        everything = streams.wait_going(count, resumed)
        times = (max(last - began, 0.0), answered, first - resumed, everything - resumed)
        return tuple(seconds * 1000 for seconds in times)
    finally:
        streams.close()
        order.sock.close()


@contextlib.contextmanager
def served(program: Sequence[str], folder: pathlib.Path, step_ms: float) -> Iterator[int]:
    """Serve with a stand-in of its own; yields the port."""
    port, rpc = free_port(), free_port()
    serve = [
        *program, "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(port),
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(rpc),
        "--data-parallel-size", "1", "--data-parallel-size-local", "0",
        "--served-model-name", "tiny",
    ]  # fmt: skip
    simulate = [
        sys.executable, "-m", "vllmfront", "simulate", "--handshake", f"tcp://127.0.0.1:{rpc}",
        "--vocab-size", "2048", "--max-model-len", "8192", "--step-ms", str(step_ms),
        "--max-batch", "1024",
    ]  # fmt: skip
    with running(serve, folder / "frontend.log"), running(simulate, folder / "engine.log"):
        wait_healthy(port, folder / "frontend.log")
        yield port


@contextlib.contextmanager
def running(command: list[str], log: pathlib.Path) -> Iterator[None]:
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def wait_healthy(port: int, log: pathlib.Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        time.sleep(0.1)
    raise SystemExit(f"it does not serve: {log.read_text(errors='replace')[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def report(mode: str, found: dict[str, list[tuple[float, ...]]]) -> None:
    print(f"{mode:<8} {'ms, median (maximum)':<22}", *(f"{name:>18}" for name in COLUMNS))
    for name, rows in found.items():
        cells = [
            f"{statistics.median(column):.1f} ({max(column):.1f})"
            for column in zip(*rows, strict=True)
        ]
        print(f"{'':<8} {name:<22}", *(f"{cell:>18}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--mode", action="append", choices=("keep", "abort"), help="default: both")
    parser.add_argument("--peer", type=pathlib.Path, default=os.environ.get("VLLMFRONT_PEER"))
    options = parser.parse_args()
    programs = {"vllmfront": [sys.executable, "-m", "vllmfront"]}
    if options.peer is not None:
        programs["vllm-rs"] = [str(options.peer)]
    with contextlib.ExitStack() as stack:
        ports = {}
        for name, program in programs.items():
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ports[name] = stack.enter_context(served(program, folder, options.step_ms))
        print(f"{options.streams} streams, a step takes {options.step_ms:g} ms")
        for mode in options.mode or ("keep", "abort"):
            found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ports}
            for number in range(options.repeat + 1):
                for name, port in ports.items():
                    row = measure(port, mode, options.streams)
                    if number:  # the first is to warm up
                        found[name].append(row)
            report(mode, found)


if __name__ == "__main__":
    main()
