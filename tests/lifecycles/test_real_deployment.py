"""Two frontends of one deployment, each a process with a real engine on the CPU."""

import json
import os
import re
import shutil
import signal
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.deployments import cores
from tests.end_to_end.rig import START_SECONDS, Server, managed_options, running, wait_until
from tests.lifecycles.test_deployments import free_port
from tests.real_engine._process import TINY_CHAT

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NODES = 2


@contextmanager
def hybrid(folder: Path, model: Path) -> Generator[list[Server]]:
    """Run two nodes on this machine for the block, with one engine each."""
    port = str(free_port())
    with ExitStack() as stack:
        servers = []
        for rank in range(NODES):
            (folder / str(rank)).mkdir()
            options = [
                *("--data-parallel-hybrid-lb", "--data-parallel-size", str(NODES)),
                *("--data-parallel-size-local", "1", "--data-parallel-start-rank", str(rank)),
                *("--data-parallel-rpc-port", port, "--engine-restart-backoff", "0.1"),
            ]
            started = running(folder / str(rank), *managed_options(), *options, model=model)
            servers.append(stack.enter_context(started))
        yield servers


def answer(server: Server) -> int:
    """Return how many tokens a request of five gets."""
    response = server.post("/v1/completions", prompt="hi", max_tokens=5, ignore_eos=True)
    tokens: int = response.json()["usage"]["completion_tokens"]
    return tokens


def core(server: Server) -> int:
    (found,) = cores(server.process.pid)
    return found


def test_engines_of_two_nodes_step_together_and_come_back_together(tmp_path: Path) -> None:
    """One of them is killed; the other node's frontend starts its own anew as well."""
    model = shutil.copytree(TINY_CHAT, tmp_path / "tiny-moe")
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_experts": 8}))

    with hybrid(tmp_path, model) as servers:
        for server in servers:
            server.wait_ready()
        first = [answer(servers[place]) for place in (0, 1, 1, 0)]
        before = [core(server) for server in servers]
        os.kill(before[1], signal.SIGKILL)
        # Both, although only one has lost its engine.
        wait_until(lambda: all(server.health() == 503 for server in servers))
        wait_until(lambda: all(server.health() == 200 for server in servers), 2 * START_SECONDS)
        after = [core(server) for server in servers]
        second = [answer(servers[place]) for place in (1, 0, 0, 1)]
        log = servers[0].log

    assert first == second == [5] * 4
    assert not set(before) & set(after)
    assert re.search("Engine 0 has to start anew, as one that it steps together with", log)
    assert [server.process.returncode for server in servers] == [0, 0]
