"""``vllm serve`` with our program in place of the frontend that it ships."""

import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import attrs
import httpx

from tests.end_to_end.rig import ANSWER_SECONDS, Stream, wait_until
from tests.lifecycles.rig import alive, descendants
from tests.real_engine._process import (
    ENGINE_ARGUMENTS,
    TINY_CHAT,
    engine_environment,
    engine_python,
)

PROGRAM = Path(sys.executable).with_name("vllmfront")
"""The console script, as ``which vllmfront`` finds it."""

KEY = "key-of-a-client"
START_SECONDS = 360.0
"""Two supervisors and their engines import vLLM six times between them."""

STOP_SECONDS = 20.0


@attrs.frozen(eq=False)
class Supervised:
    """A supervisor, with its engines and our frontend."""

    process: subprocess.Popen[bytes]
    log_file: Path
    http: httpx.Client
    address: str | tuple[str, int]
    """Where the frontend listens."""

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def frontend(self) -> int:
        """The process id of our program."""
        found = re.findall(r"\(VllmFront pid=(\d+)\)", self.log)
        return int(found[0])

    @property
    def engines(self) -> list[int]:
        """The process ids of the engines."""
        return sorted({int(pid) for pid in re.findall(r"\(EngineCore\S* pid=(\d+)\)", self.log)})

    def health(self) -> int | None:
        """Return what ``/health`` answers; None where nobody accepts."""
        if not self.accepts():
            return None
        return self.http.get("/health").status_code

    def accepts(self) -> bool:
        """Tell whether clients can connect; httpx leaks a Unix socket each time they cannot."""
        family = socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET
        with socket.socket(family) as probe:
            try:
                probe.connect(self.address)
            except OSError:
                return False
        return True

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_ready(self) -> None:
        wait_until(lambda: self.health() == 200 or self.has_ended(), START_SECONDS)
        assert not self.has_ended(), self.log[-4000:]

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    @contextmanager
    def stream(self, **fields: object) -> Generator[Stream]:
        """Stream a completion that no EOS ends."""
        body = {"prompt": "hi", "ignore_eos": True, "stream": True, **fields}
        with self.http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            yield Stream(response.iter_lines())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Tell the supervisor to stop; return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def supervising(
    version: str,
    folder: Path,
    *options: str,
    uds: Path | None = None,
    model: Path = TINY_CHAT,
    certificate: Path | None = None,
    program: Path = PROGRAM,
    environment: dict[str, str] | None = None,
) -> Generator[Supervised]:
    """Run ``vllm serve`` for the block, and kill what is left of it afterwards.

    Args:
        version: Of vLLM.
        folder: For the log.
        options: More of ``vllm serve``.
        uds: Where clients are served instead of a free port.
        model: Its folder.
        certificate: Authority of the server's, where it speaks TLS.
        program: What is started as the frontend.
        environment: More variables.
    """
    port = free_port()
    where = ["--uds", str(uds)] if uds is not None else ["--host", "127.0.0.1", "--port", str(port)]
    serve = [str(engine_python()), "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    log_file = folder / "supervisor.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*serve, *where, *ENGINE_ARGUMENTS, *options],
            env={
                **engine_environment(version),
                "VLLM_USE_RUST_FRONTEND": "1",
                "VLLM_RUST_FRONTEND_PATH": str(program),
                "VLLM_CPU_SIM_MULTI_NUMA": "1",
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    transport = None if uds is None else httpx.HTTPTransport(uds=str(uds))
    scheme = "http" if certificate is None else "https"
    try:
        with httpx.Client(
            base_url=f"{scheme}://127.0.0.1:{port}",
            transport=transport,
            verify=ssl.create_default_context(cafile=certificate),
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=ANSWER_SECONDS,
            limits=httpx.Limits(max_keepalive_connections=0),
        ) as http:
            yield Supervised(
                process, log_file, http, ("127.0.0.1", port) if uds is None else str(uds)
            )
    finally:
        kill_all(process)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the supervisor, and what belongs to its session."""
    below = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_SECONDS)
    for pid in filter(alive, below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
