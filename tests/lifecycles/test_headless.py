"""Nodes that run engines alone: the process is all that there is."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.lifecycles.rig import (
    SIMULATE,
    alive,
    commanded,
    config,
    fake_python,
    serving,
    wait_until,
)
from vllmfront.errors import (
    EngineDied,
    FirstStartFailed,
    RestartLimitExceeded,
    StartupFailed,
    VllmFrontError,
)
from vllmfront.lifecycles import EngineConfig, RestartConfig, ServeConfig
from vllmfront.lifecycles import _headless as headless

QUICK = RestartConfig(backoff=0.05, backoff_cap=0.2)


def node(folder: Path, port: int, *, engine: str = SIMULATE, **fields: Any) -> ServeConfig:
    """Make a node that runs both engines of a frontend at *port*."""
    python = fake_python(folder, engine=engine)
    engines = EngineConfig(
        **{
            "python": python,
            "handshake_port": port,
            "data_parallel_size": 2,
            "restart": QUICK,
            **fields,
        }
    )
    return attrs.evolve(config(engine=engines), headless=True)


@attrs.define
class Node:
    ended: trio.Event = attrs.field(factory=trio.Event)
    error: VllmFrontError | None = None


@asynccontextmanager
async def running(settings: ServeConfig) -> AsyncGenerator[Node]:
    """Run a node for the block; then a signal ends it, if nothing has yet."""
    found = Node()

    async def run() -> None:
        try:
            await headless.serve_headless(settings)
        except VllmFrontError as error:
            found.error = error
        finally:
            found.ended.set()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield found
            if not found.ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
            await found.ended.wait()


async def test_a_frontend_elsewhere_serves_the_engines_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is killed is started again, and the other one does not notice."""
    monkeypatch.setattr(headless, "_SETTLED", 0.1)
    frontend_settings = config(
        engine=EngineConfig(data_parallel_size=2, data_parallel_size_local=0)
    )
    async with serving(frontend_settings) as frontend:
        assert frontend.serving is not None
        address = str(frontend.serving.handshake_address)
        async with running(node(tmp_path, int(address.rpartition(":")[2]))) as found:
            await frontend.wait_ready()
            first, second = (commanded(f"{address} --start-rank {rank}")[0] for rank in (0, 1))
            os.kill(second, signal.SIGKILL)
            await wait_until(lambda: commanded(f"{address} --start-rank 1") not in ([], [second]))
            answer = await frontend.generate(max_tokens=3)
            assert commanded(f"{address} --start-rank 0") == [first]
            # One signal ends both: it goes to this process, where both run.
            os.kill(os.getpid(), signal.SIGTERM)

    assert answer.json()["usage"]["completion_tokens"] == 3
    assert found.error is None
    assert not alive(first)
    assert commanded(address) == []


async def test_an_engine_that_ends_soon_after_its_start_is_quoted(tmp_path: Path) -> None:
    settings = node(tmp_path, 1, engine="echo no weights; exit 3", data_parallel_size=1)
    async with running(settings) as found:
        await found.ended.wait()

    assert isinstance(found.error, FirstStartFailed)
    assert isinstance(found.error.__cause__, StartupFailed)
    assert str(found.error.__cause__) == (
        "soon after its start, the managed engine ended with status 3\nits last lines were:\n"
        "  | no weights"
    )


async def test_without_restarts_a_node_ends_with_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headless, "_SETTLED", 0.1)
    ids = tmp_path / "pid"
    settings = node(
        tmp_path,
        1,
        engine=f"echo $$ > {ids}; exec sleep 600",
        data_parallel_size=1,
        restart=RestartConfig(kind="never"),
    )
    async with running(settings) as found:
        await wait_until(lambda: ids.exists() and ids.read_text().endswith("\n"))
        await trio.sleep(0.2)
        os.kill(int(ids.read_text()), signal.SIGKILL)
        await found.ended.wait()

    assert isinstance(found.error, RestartLimitExceeded)
    assert isinstance(found.error.__cause__, EngineDied)
    assert "the managed engine was killed by SIGKILL" in str(found.error.__cause__)


async def test_a_second_signal_kills_an_engine_that_takes_its_time(tmp_path: Path) -> None:
    ids = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {ids}; while :; do sleep 1; done"
    settings = node(tmp_path, 1, engine=stubborn, data_parallel_size=1)
    async with running(settings) as found:
        await wait_until(lambda: ids.exists() and ids.read_text().endswith("\n"))
        begun = trio.current_time()
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        await found.ended.wait()

    assert found.error is None
    assert trio.current_time() - begun < 4.0
    assert not alive(int(ids.read_text()))
