"""Frontends with engines of their own, for tests that end either."""

import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import attrs

from tests.end_to_end.rig import (
    START_SECONDS,
    Server,
    external_options,
    managed_options,
    running,
)
from tests.lifecycles.rig import descendants
from tests.real_engine._process import engine_command, engine_environment
from tests.supervisor.process_rig import parent_of

VERSION = "0.32.0"


@contextmanager
def engines_for(server: Server, size: int = 1) -> Generator[int]:
    """Run *size* engines for *server* for the block; the value is the process above them."""
    port = int(server.handshake_address.rpartition(":")[2])
    with server.log_file.with_name("engines.log").open("ab") as log:
        process = subprocess.Popen(
            engine_command(port, size),
            env=engine_environment(VERSION),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cores(pid: int) -> list[int]:
    """List the engine cores below the process *pid*, without what these have just forked."""
    parents = {}
    for below in descendants(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{below}/cmdline").read_bytes().startswith(b"VLLM::EngineCore"):
                parents[below] = parent_of(below)
    return [core for core, parent in parents.items() if parent not in parents]


@attrs.frozen
class Deployment:
    """A frontend with engines of its own, for one test to end as it likes."""

    server: Server
    launcher: int
    """The process above the engine cores."""

    def core(self) -> int:
        """Return the process of its only engine core."""
        (core,) = cores(self.launcher)
        return core


@contextmanager
def managed(folder: Path) -> Generator[Deployment]:
    """Run a frontend that runs its engine, and drains for ten seconds.

    Requests wait for another engine for as long as that takes on a busy machine.
    """
    patience = ("--request-recovery-wait", str(START_SECONDS))
    with running(folder, *managed_options(), "--shutdown-timeout", "10", *patience) as server:
        yield Deployment(server, server.process.pid)


@contextmanager
def mortal(folder: Path) -> Generator[Deployment]:
    """Run a frontend that ends with its engine."""
    with running(folder, *managed_options(), "--engine-restart", "never") as server:
        yield Deployment(server, server.process.pid)


@contextmanager
def external(folder: Path) -> Generator[Deployment]:
    """Run a frontend and an engine side by side."""
    with running(folder, *external_options()) as server, engines_for(server) as pid:
        yield Deployment(server, pid)


@contextmanager
def parallel(folder: Path) -> Generator[Deployment]:
    """Run a frontend and two engines side by side."""
    with running(folder, *external_options(2)) as server, engines_for(server, 2) as pid:
        yield Deployment(server, pid)


DEPLOYMENTS: Mapping[str, Callable[[Path], AbstractContextManager[Deployment]]] = {
    "managed": managed,
    "mortal": mortal,
    "external": external,
    "parallel": parallel,
}


@attrs.define
class Ahead:
    """Starts each test's deployment one test ahead: its engines load while another test runs."""

    folders: Iterator[Path]
    wanted: deque[str]
    """What tests will ask for, in their order."""

    _begun: deque[tuple[ExitStack, Deployment]] = attrs.field(factory=deque, init=False)

    @contextmanager
    def take(self) -> Generator[Deployment]:
        """Have the next deployment, which serves, for the block."""
        while self.wanted and len(self._begun) < 2:
            self._begin(DEPLOYMENTS[self.wanted.popleft()])
        stack, deployment = self._begun.popleft()
        with stack:
            deployment.server.wait_ready()
            yield deployment

    def _begin(self, kind: Callable[[Path], AbstractContextManager[Deployment]]) -> None:
        stack = ExitStack()
        self._begun.append((stack, stack.enter_context(kind(next(self.folders)))))

    def close(self) -> None:
        """End what no test has taken."""
        for stack, _ in self._begun:
            stack.close()
