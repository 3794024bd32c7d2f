"""Real vLLM engines on the CPU: each is started once, in the background, for all tests."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest
import zmq

from vllmfront.engine.wire import EngineAddresses, Ready, decode_handshake, encode_init

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
TINY_CHAT = DATA / "tiny-chat"
VOCAB_SIZE = 2048
MAX_MODEL_LEN = 1024
ENGINE_FOLDER = ROOT / ".cache" / "engine"

ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}
"""One process and one thread: quick to start, steady beside other work."""

ENGINE_ARGUMENTS = [
    "--enforce-eager",
    *("--dtype", "bfloat16"),
    *("--max-model-len", str(MAX_MODEL_LEN)),
    *("--max-num-seqs", "16"),
    *("--kv-cache-memory-bytes", str(64 * 2**20)),
]
START_SECONDS = 180.0
STOP_SECONDS = 10.0


def engine_python() -> Path:
    """Return the Python of the real engine's environment; the test is skipped without one.

    Under ``make test`` a missing engine is a failure.
    """
    named = os.environ.get("VLLMFRONT_ENGINE_PYTHON")
    python = Path(named) if named else ENGINE_FOLDER / "venv" / "bin" / "python"
    if not python.exists():
        _miss(f"no engine at {python}")
    return python


def engine_environment(version: str) -> Mapping[str, str]:
    """Return the environment variables that an engine of that *version* runs with."""
    environment = os.environ | ENGINE_ENVIRONMENT
    if version == "0.33.0":
        named = os.environ.get("VLLMFRONT_ENGINE_033")
        code = Path(named) if named else ENGINE_FOLDER / "next"
        if not (code / "vllm").exists():
            _miss(f"no code of vLLM {version} in {code}")
        environment["PYTHONPATH"] = str(code)
    return environment


def engine_command(port: int, size: int = 1) -> list[str]:
    """Return what starts *size* headless engines for the frontend that listens at *port*."""
    serve = ["-m", "vllm.entrypoints.cli.main", "serve", str(TINY_CHAT), "--headless"]
    parallel = [
        *("--data-parallel-address", "127.0.0.1"),
        *("--data-parallel-rpc-port", str(port)),
        *("--data-parallel-size", str(size)),
        *("--data-parallel-size-local", str(size)),
    ]
    return [str(engine_python()), *serve, *parallel, *ENGINE_ARGUMENTS]


def _miss(what: str) -> None:
    reason = f"{what}: `make test` sets it up, VLLMFRONT_ENGINE_PYTHON names one that you have"
    if os.environ.get("VLLMFRONT_REQUIRE_ENGINE"):
        pytest.fail(reason)
    pytest.skip(reason)


@attrs.frozen
class Greeting:
    """What the engine said at its start, kept for the frontends of all tests."""

    registration: bytes


class RealEngine:
    """A headless engine whose handshake is done, so that sockets at its addresses reach it.

    An engine reconnects to whoever binds the addresses that it was given.
    """

    def __init__(self, version: str, arguments: tuple[str, ...] = ()) -> None:
        self.version = version
        self._folder = Path(tempfile.mkdtemp(prefix="vf-engine-"))
        self.inputs = f"ipc://{self._folder}/in"
        self.outputs = f"ipc://{self._folder}/out"
        self._log = self._folder / "log"
        self._greeting: Greeting | None = None
        self._failure: str | None = None
        self._context = zmq.Context()
        handshake = self._context.socket(zmq.ROUTER)
        port = handshake.bind_to_random_port("tcp://127.0.0.1")
        self._process = self._start(port, arguments)
        self._thread = threading.Thread(target=self._shake_hands, args=(handshake,))
        self._thread.start()

    def _start(self, port: int, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*engine_command(port), *arguments],
                env=engine_environment(self.version),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_greeting(self) -> Greeting:
        """Return what the engine said at its start; blocks until it said so."""
        self._thread.join()
        if self._greeting is None:
            tail = self._log.read_text(errors="replace")[-4000:]
            pytest.fail(f"the engine {self.version} did not start: {self._failure}\n{tail}")
        return self._greeting

    def _shake_hands(self, handshake: "zmq.Socket[bytes]") -> None:
        addresses = EngineAddresses(inputs=[self.inputs], outputs=[self.outputs])
        requests = self._context.socket(zmq.ROUTER)
        requests.bind(self.inputs)
        deadline = time.monotonic() + START_SECONDS
        try:
            while True:
                identity, payload = self._receive(handshake, deadline)
                if isinstance(decode_handshake(payload), Ready):
                    break
                handshake.send_multipart([identity, encode_init(addresses)])
            self._greeting = Greeting(self._receive(requests, deadline)[1])
        except TimeoutError as error:
            self._failure = str(error)
        finally:
            self._context.destroy(linger=0)

    def _receive(self, socket: "zmq.Socket[bytes]", deadline: float) -> list[bytes]:
        while not socket.poll(200):
            if self._process.poll() is not None:
                raise TimeoutError("its process has ended")
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing heard in {START_SECONDS:.0f} s")
        return socket.recv_multipart()

    def stop(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)


class EnginePool:
    """The engines of one test session, by version."""

    def __init__(self) -> None:
        self._engines: dict[str, RealEngine] = {}

    def start(self, version: str) -> RealEngine:
        """Return the engine of that *version*, which may still be loading."""
        if version not in self._engines:
            self._engines[version] = RealEngine(version)
        return self._engines[version]

    def get(self, version: str) -> RealEngine:
        """Return the engine of that *version*, loaded."""
        engine = self.start(version)
        engine.wait_greeting()
        return engine

    def stop(self) -> None:
        for engine in self._engines.values():
            engine.stop()
        self._engines.clear()
