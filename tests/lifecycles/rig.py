"""Whole frontends in the test's own process, with engines that are stand-ins."""

import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from vllmfront.errors import VllmFrontError
from vllmfront.lifecycles import EngineConfig, ListenConfig, ModelConfig, ServeConfig, ServerConfig
from vllmfront.lifecycles._serve import Serving, serve
from vllmfront.simulator import SimulatorConfig, serve_simulator

BUDGET = 30.0
"""Seconds that no test needs on a machine that is not overloaded."""

TINY_CHAT = Path(__file__).parents[1] / "data" / "tiny-chat"

FAKE_PYTHON = """\
#!/bin/sh
# Stands for an interpreter that has vLLM: plays a headless engine, without a model.
if [ "$1" = "-c" ]; then exit {probe}; fi
start=0
while [ $# -gt 0 ]; do
    case "$1" in
        --data-parallel-address) host="$2" ;;
        --data-parallel-rpc-port) port="$2" ;;
        --data-parallel-size) size="$2" ;;
        --data-parallel-size-local) ranks="$2" ;;
        --data-parallel-start-rank) start="$2" ;;
    esac
    shift
done
ranks="${{ranks:-$size}}"
{engine}
"""

SIMULATE = (
    f"exec {sys.executable} -m vllmfront simulate --handshake tcp://$host:$port "
    "--start-rank $start --ranks $ranks --vocab-size 2048 --step-ms 5"
)


def fake_python(folder: Path, *, engine: str = SIMULATE, probe: int = 0) -> str:
    """Write a program that takes the place of ``--python``; *engine* is a line of shell."""
    path = folder / "python"
    path.write_text(FAKE_PYTHON.format(engine=engine, probe=probe))
    path.chmod(0o755)
    return str(path)


def config(
    *,
    model: ModelConfig | None = None,
    listen: ListenConfig | None = None,
    engine: EngineConfig | None = None,
    server: ServerConfig | None = None,
) -> ServeConfig:
    """Make a configuration for external engines on ports that are free."""
    return ServeConfig(
        model=model or ModelConfig(model=str(TINY_CHAT)),
        listen=listen or ListenConfig(port=0),
        engine=engine or EngineConfig(data_parallel_size_local=0),
        server=server or ServerConfig(served_model_names=("tiny",)),
    )


@attrs.define
class Frontend:
    """A frontend that runs."""

    http: httpx.AsyncClient
    serving: Serving | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)
    error: VllmFrontError | None = None

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        os.kill(os.getpid(), number)

    async def wait_ready(self) -> None:
        await wait_health(self.http, 200)

    async def generate(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": "hi", **fields})


@asynccontextmanager
async def serving(settings: ServeConfig, budget: float = BUDGET) -> AsyncGenerator[Frontend]:
    """Serve for as long as the block runs; then a signal ends it, if nothing has yet."""
    with trio.fail_after(budget):
        async with trio.open_nursery() as nursery, _client(settings) as client:
            frontend = Frontend(client)
            frontend.serving = await nursery.start(_run, frontend, settings)
            if frontend.serving is not None and settings.listen.uds is None:
                port = frontend.serving.listeners[0].socket.getsockname()[1]
                client.base_url = httpx.URL(f"http://127.0.0.1:{port}")
            yield frontend
            if not frontend.ended.is_set():
                frontend.signal()
            await frontend.ended.wait()


def _client(settings: ServeConfig) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=settings.listen.uds) if settings.listen.uds else None
    return httpx.AsyncClient(transport=transport, base_url="http://frontend", timeout=BUDGET)


async def _run(
    frontend: Frontend, settings: ServeConfig, *, task_status: trio.TaskStatus[Serving | None]
) -> None:
    status = _Once(task_status)
    try:
        await serve(settings, task_status=status)
    except VllmFrontError as exc:
        frontend.error = exc
    finally:
        frontend.ended.set()
    if not status.told:
        task_status.started(None)


@attrs.define
class _Once:
    """Remembers whether a start was reported."""

    task_status: trio.TaskStatus[Serving | None]
    told: bool = False

    def started(self, value: Serving | None = None) -> None:
        self.told = True
        self.task_status.started(value)


@asynccontextmanager
async def simulated_engine(frontend: Frontend, **fields: Any) -> AsyncGenerator[None]:
    """Run an external engine for *frontend*, and wait until it serves."""
    assert frontend.serving is not None
    assert frontend.serving.handshake_address is not None
    settings = SimulatorConfig(
        handshake=frontend.serving.handshake_address, vocab_size=2048, **fields
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_simulator, settings)
        await frontend.wait_ready()
        yield
        nursery.cancel_scope.cancel()


async def wait_health(http: httpx.AsyncClient, status: int) -> None:
    """Ask until ``/health`` answers *status*."""
    while (await http.get("/health")).status_code != status:  # noqa: ASYNC110 (no event)
        await trio.sleep(0.01)


async def wait_until(condition: Callable[[], bool], budget: float = BUDGET) -> None:
    """Wait for what sets no event: other processes."""
    with trio.fail_after(budget):
        while not condition():  # noqa: ASYNC110 (no event)
            await trio.sleep(0.01)


def exists(path: Path) -> bool:
    return os.path.lexists(path)


def alive(pid: int) -> bool:
    """Whether *pid* is a process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """List all processes below *pid*; each belongs to the thread that started it."""
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, file.read_text().split())
    return children + [each for child in children for each in descendants(child)]


def commanded(marker: str) -> list[int]:
    """List the processes whose command line holds *marker*, with all below them."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if marker.encode() in file.read_bytes().replace(b"\0", b" "):
                found.append(int(file.parent.name))
    return found + [each for pid in found for each in descendants(pid)]
