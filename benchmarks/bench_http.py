"""What the HTTP layer costs: a small POST answered whole, and one chunk of a stream.

    python benchmarks/bench_http.py [--seconds 3] [--connections 16]

A client process asks as fast as it is answered; the server process counts its own CPU time.
User time is what our code costs; system time is the kernel's share (socket calls, epoll).
"""

import argparse
import json
import multiprocessing
import resource
import selectors
import socket
import time
from collections.abc import Callable

import attrs
import trio

from vllmfront.api.http import (
    HttpConfig,
    HttpRequest,
    ListenConfig,
    ResponseWriter,
    Router,
    open_listeners,
    serve_http,
)

HEADERS = (
    "Host: 127.0.0.1:8000\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
    "Accept: application/json\r\nContent-Type: application/json\r\n"
    "User-Agent: OpenAI/Python 2.0\r\nX-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\n"
    "Authorization: Bearer EMPTY\r\n"
)
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 60}]})
ANSWER = json.dumps({"choices": [{"message": {"content": "x" * 400}}]}).encode()
CHUNK = b'data: {"id":"chatcmpl-12345678","choices":[{"delta":{"content":" word"}}]}\n\n' * 2
CHUNKS_A_STREAM = 128


def post(path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\n{HEADERS}Content-Length: {len(BODY)}\r\n\r\n"
    return (head + BODY).encode()


async def answer_whole(_request: HttpRequest, response: ResponseWriter) -> None:
    response.respond(200, ANSWER)


async def answer_later(_request: HttpRequest, response: ResponseWriter) -> None:
    """Answer after a turn of the loop, as a handler does that waits for an engine."""
    await trio.lowlevel.checkpoint()
    response.respond(200, ANSWER)


@attrs.define
class Broadcaster:
    """Pushes one chunk to every open stream in turn, as an engine link's reader does."""

    streams: dict[ResponseWriter, tuple[int, trio.Event]] = attrs.field(factory=dict)

    async def answer(self, _request: HttpRequest, response: ResponseWriter) -> None:
        done = trio.Event()
        response.start(200, [(b"content-type", b"text/event-stream")])
        self.streams[response] = (CHUNKS_A_STREAM, done)
        try:
            await done.wait()
        finally:
            del self.streams[response]

    async def push(self) -> None:
        while True:
            for response, (left, done) in list(self.streams.items()):
                if left == 0:
                    response.finish()
                    done.set()
                elif not response.congested:
                    response.write(CHUNK)
                    self.streams[response] = (left - 1, done)
            await trio.sleep(0.002)


def run_server(started: "multiprocessing.SimpleQueue[int]") -> None:
    async def main() -> None:
        broadcaster = Broadcaster()
        router = Router()
        router.add("POST", "/whole", answer_whole)
        router.add("POST", "/later", answer_later)
        router.add("POST", "/stream", broadcaster.answer)
        router.add("GET", "/cpu", report_cpu)
        async with (
            open_listeners(ListenConfig(port=0)) as listeners,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(serve_http, listeners, router, HttpConfig())
            nursery.start_soon(broadcaster.push)
            started.put(listeners[0].socket.getsockname()[1])

    trio.run(main)


async def report_cpu(_request: HttpRequest, response: ResponseWriter) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    response.respond(200, json.dumps([usage.ru_utime, usage.ru_stime]).encode())


def ask_cpu(port: int) -> tuple[float, float]:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET /cpu HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = b""
        while data := sock.recv(65536):
            answer += data
    user, system = json.loads(answer.partition(b"\r\n\r\n")[2])
    return user, system


def load(port: int, path: str, end: bytes, connections: int, seconds: float) -> int:
    """Keep *connections* busy for *seconds*; return how many answers came."""
    request = post(path)
    selector = selectors.DefaultSelector()
    for _ in range(connections):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(request)
        selector.register(sock, selectors.EVENT_READ)
    answers = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for key, _ in selector.select(1.0):
            sock = key.fileobj  # type: ignore[assignment]  # registered as a socket above
            if sock.recv(1 << 18).endswith(end):
                answers += 1
                sock.sendall(request)
    for key in list(selector.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]  # as above
    selector.close()
    return answers


def measure(port: int, name: str, run: Callable[[], int], unit: int) -> None:
    user, system = ask_cpu(port)
    begin = time.monotonic()
    count = run() * unit
    took = time.monotonic() - begin
    user_after, system_after = ask_cpu(port)
    print(
        f"{name:28} user {(user_after - user) / count * 1e6:6.2f} us  "
        f"kernel {(system_after - system) / count * 1e6:6.2f} us  {count / took:9.0f} a second"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=16)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    started = context.SimpleQueue()
    server = context.Process(target=run_server, args=(started,), daemon=True)
    server.start()
    port = started.get()
    whole, last = b"}]}", b"0\r\n\r\n"

    def loaded(path: str, end: bytes) -> Callable[[], int]:
        return lambda: load(port, path, end, args.connections, args.seconds)

    measure(port, "POST, answered at once", loaded("/whole", whole), 1)
    measure(port, "POST, answered a turn later", loaded("/later", whole), 1)
    measure(port, "chunk of a stream", loaded("/stream", last), CHUNKS_A_STREAM)
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
