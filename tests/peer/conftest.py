"""The peer and ourselves, each in front of the same engine stand-in, in the same place: with the
engine's handshake, or under a stand-in for vLLM's supervisor."""

import contextlib
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import httpx
import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "tests" / "data" / "tiny-chat"
PEER = pathlib.Path(os.environ.get("VLLMFRONT_PEER", ROOT / ".cache" / "peer" / "vllm-rs"))
START_SECONDS = 60.0
STOP_SECONDS = 15.0
VOCABULARY = 2048
MAX_MODEL_LEN = 2048


@pytest.fixture(scope="session", params=["serve", "frontend"])
def mode(request: pytest.FixtureRequest) -> str:
    """How both are run; ``frontend`` is what vLLM's supervisor starts."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def peer_url(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running vllm-rs."""
    if not PEER.exists():
        pytest.skip(f"no peer at {PEER}: run `make test-peer`, or set VLLMFRONT_PEER")
    with served([str(PEER)], mode, tmp_path_factory.mktemp("peer")) as url:
        yield url


@pytest.fixture(scope="session")
def our_url(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running vllmfront."""
    program = [sys.executable, "-m", "vllmfront"]
    with served(program, mode, tmp_path_factory.mktemp("ours")) as url:
        yield url


@contextlib.contextmanager
def served(
    program: list[str],
    mode: str,
    folder: pathlib.Path,
    *,
    options: Sequence[str] = (),
    engine_options: Sequence[str] = (),
) -> Iterator[str]:
    """Run *program* with a simulated engine of its own; logs go to *folder*."""
    port, rpc = free_port(), free_port()
    if mode == "frontend":
        supervise = [sys.executable, "-m", "benchmarks.supervise"]
        program = [*supervise, "--program", shlex.join(program)]
    serve = [
        *program, "serve", str(MODEL), "--host", "127.0.0.1", "--port", str(port),
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(rpc),
        "--data-parallel-size", "1", "--data-parallel-size-local", "0",
        "--served-model-name", "tiny", *options,
    ]  # fmt: skip
    simulate = [
        sys.executable, "-m", "vllmfront", "simulate", "--handshake", f"tcp://127.0.0.1:{rpc}",
        "--vocab-size", str(VOCABULARY), "--max-model-len", str(MAX_MODEL_LEN),
        "--step-ms", "8", "--vllm-version", "0.33.0", *engine_options,
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        frontend = stack.enter_context(running(serve, folder / "frontend.log"))
        stack.enter_context(running(simulate, folder / "engine.log"))
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, frontend, folder)
        yield url


@contextlib.contextmanager
def running(command: list[str], log: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], folder: pathlib.Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK:
                return
        time.sleep(0.1)
    pytest.fail(f"{url} did not come up:\n{(folder / 'frontend.log').read_text()[-4000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
