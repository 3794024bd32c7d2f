"""From exec to the first answer of ``vllmfront frontend``, and which imports that time goes to.

    python -m benchmarks.bench_cold_start [--runs 5] [--model FOLDER]

The supervisor is a stand-in that has bound its sockets as vLLM does. The clock stops when
``/health`` answers, 503 as no engine is there. Imports are those of one more run under ``python -X
importtime``, which itself makes them about a third slower.

Bytecode is there, as after an installation by pip: it is made in a folder of its own by a first
run that is not counted. Without it, as in a working copy with PYTHONDONTWRITEBYTECODE=1, a start
takes about a quarter of a second more.
"""

import argparse
import contextlib
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vllmfront.testing import SupervisorStandIn, open_supervisor, supervised_args

MODEL = Path(__file__).parents[1] / "tests" / "data" / "tiny-chat"
PYTHON = [sys.executable, "-P"]
PROGRAM = ["-m", "vllmfront"]
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
BYTECODE = Path(tempfile.gettempdir()) / f"vllmfront-bytecode-{os.getuid()}"
PATIENCE = 30.0
MS = 1000.0
SHOWN = 24


@contextmanager
def started(
    supervisor: SupervisorStandIn, model: str, flags: Sequence[str], errors: int
) -> Iterator[subprocess.Popen[bytes]]:
    words = [*PYTHON, *flags, *PROGRAM, *supervisor.words(supervised_args(model))]
    environment = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    process = subprocess.Popen(
        words,
        env={**environment, "PYTHONPYCACHEPREFIX": str(BYTECODE)},
        pass_fds=supervisor.descriptors,
        stderr=errors,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def wait_answer(address: tuple[str, int], process: subprocess.Popen[bytes]) -> None:
    """Ask until somebody answers."""
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline and process.poll() is None:
        with contextlib.suppress(ConnectionRefusedError):
            connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 503
            connection.close()
            return
        time.sleep(0.001)
    raise SystemExit("the frontend did not come up")


def measure(model: str) -> tuple[float, float]:
    """Return seconds from exec to the first answer, and the processor time of it."""
    with open_supervisor() as supervisor:
        began = time.perf_counter()
        with started(supervisor, model, [], subprocess.DEVNULL) as process:
            wait_answer(supervisor.clients.getsockname(), process)
            wall = time.perf_counter() - began
            return wall, cpu_seconds(process.pid)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


def imports(model: str) -> list[tuple[str, float, float]]:
    """Return the modules that are imported before the first answer: own and total seconds."""
    with open_supervisor() as supervisor, tempfile.TemporaryFile() as log:
        with started(supervisor, model, ["-X", "importtime"], log.fileno()) as process:
            wait_answer(supervisor.clients.getsockname(), process)
        log.seek(0)
        text = log.read().decode()
    before, _, _ = text.partition("accepting connections")
    found = []
    for line in before.splitlines():
        if line.startswith("import time:") and "cumulative" not in line:
            own, total, name = line.removeprefix("import time:").split("|")
            found.append((name.rstrip()[1:], int(own) / 1e6, int(total) / 1e6))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default=str(MODEL))
    options = parser.parse_args()
    measure(options.model)
    runs = [measure(options.model) for _ in range(options.runs)]
    walls, cpus = zip(*runs, strict=True)
    print(
        f"exec to first answer: {min(walls) * MS:.0f} ms at best, "
        f"{statistics.median(walls) * MS:.0f} ms in the middle of {options.runs}; "
        f"processor {min(cpus) * MS:.0f} ms"
    )
    modules = imports(options.model)
    print(f"{len(modules)} modules are imported by then, {sum(m[1] for m in modules) * MS:.0f} ms:")
    packages: dict[str, float] = {}
    for name, own, _ in modules:
        top = name.strip().partition(".")[0]
        packages[top] = packages.get(top, 0.0) + own
    for name, seconds in sorted(packages.items(), key=lambda item: -item[1])[:SHOWN]:
        print(f"  {name:<28}{seconds * MS:7.1f} ms")


if __name__ == "__main__":
    main()
