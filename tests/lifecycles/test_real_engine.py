"""The managed engine is a real one, on the CPU."""

import os
import signal
from pathlib import Path

import attrs
import pytest

from tests.lifecycles.rig import Frontend, alive, commanded, config, serving
from tests.lifecycles.test_external import slow_stream
from tests.real_engine._process import ENGINE_ARGUMENTS, ENGINE_ENVIRONMENT
from vllmfront.errors import EngineDied
from vllmfront.lifecycles import EngineConfig, RestartConfig, ServeConfig

pytestmark = pytest.mark.engine

QUESTION = {"role": "user", "content": "What is the capital of France?"}


@pytest.fixture
def settings(real_engine_python: Path, monkeypatch: pytest.MonkeyPatch) -> ServeConfig:
    for name, value in ENGINE_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    engine = EngineConfig(python=str(real_engine_python), arguments=tuple(ENGINE_ARGUMENTS))
    return config(engine=engine)


def without_restarts(settings: ServeConfig) -> ServeConfig:
    """Let the frontend end with its engine."""
    engine = attrs.evolve(settings.engine, restart=RestartConfig(kind="never"))
    return attrs.evolve(settings, engine=engine)


def engine_processes(frontend: Frontend) -> list[int]:
    """List the processes of this frontend's engine: other tests have theirs."""
    assert frontend.serving is not None
    port = str(frontend.serving.handshake_address).rpartition(":")[2]
    return commanded(f"--data-parallel-rpc-port {port}")


async def test_it_answers_and_stops_without_a_trace(settings: ServeConfig) -> None:
    async with serving(settings, budget=300.0) as frontend:
        await frontend.wait_ready()
        below = engine_processes(frontend)
        chat = {"messages": [QUESTION], "temperature": 0, "max_tokens": 40}
        answer = await frontend.http.post("/v1/chat/completions", json=chat)

    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert frontend.error is None
    assert len(below) > 1
    assert not any(map(alive, below))


@pytest.mark.slow
async def test_a_killed_engine_is_told_to_streams_and_leaves_nothing(
    settings: ServeConfig,
) -> None:
    async with serving(without_restarts(settings), budget=300.0) as frontend:
        await frontend.wait_ready()
        below = engine_processes(frontend)
        core = next(pid for pid in below if _command(pid).startswith(b"VLLM::EngineCore"))
        async with slow_stream(frontend, 900) as data:
            os.kill(core, signal.SIGKILL)
        await frontend.ended.wait()

    assert data[-1] == "[DONE]"
    assert '"error"' in data[-2]
    assert frontend.error is not None
    assert isinstance(frontend.error.__cause__, EngineDied)
    assert not any(map(alive, below))


@pytest.mark.slow
async def test_nothing_survives_a_killed_reaper(settings: ServeConfig) -> None:
    """Its processes have given themselves titles, and are told by their session alone."""
    async with serving(without_restarts(settings), budget=300.0) as frontend:
        await frontend.wait_ready()
        below = engine_processes(frontend)
        (reaper,) = {pid for pid in map(_parent, below) if b"_reaper.py" in _command(pid)}
        os.kill(reaper, signal.SIGKILL)
        await frontend.ended.wait()

    assert frontend.error is not None
    assert "(the supervising process was killed)" in str(frontend.error.__cause__)
    assert len(below) > 1
    assert not any(map(alive, below))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
