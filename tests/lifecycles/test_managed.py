"""Frontends that run their engine: the process tree's life is theirs."""

import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio

from tests.lifecycles.rig import (
    BUDGET,
    SIMULATE,
    TINY_CHAT,
    Frontend,
    alive,
    commanded,
    config,
    descendants,
    exists,
    fake_python,
    serving,
    wait_health,
    wait_until,
)
from tests.lifecycles.test_external import finish_reason, slow_stream
from vllmfront.errors import ConfigurationError, EngineDied, StartupFailed
from vllmfront.lifecycles import EngineConfig, RestartConfig, ServeConfig


def managed(folder: Path, *, engine: str = SIMULATE, **fields: object) -> ServeConfig:
    python = fake_python(folder, engine=engine)
    return config(engine=EngineConfig(python=python, **fields))  # type: ignore[arg-type]


@pytest.fixture
def socket_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the engine's sockets; its path is short, as those must be."""
    with tempfile.TemporaryDirectory(prefix="vf-") as folder:
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", folder)
        yield Path(folder)


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def is_gone(ids: Path) -> bool:
    """Whether the process is gone whose id is in the file *ids*."""
    return not alive(int(ids.read_text()))


def cause(frontend: Frontend) -> BaseException | None:
    assert frontend.error is not None
    return frontend.error.__cause__


async def test_it_runs_its_engine_and_stops_it(
    tmp_path: Path,
    socket_folder: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(managed(tmp_path)) as frontend:
        await frontend.wait_ready()
        assert frontend.serving is not None
        port = str(frontend.serving.handshake_address).rpartition(":")[2]
        answer = await frontend.generate(max_tokens=3)
        assert len(files_in(socket_folder)) == 4
        assert len(commanded(f"tcp://127.0.0.1:{port}")) == 1

    assert answer.json()["usage"]["completion_tokens"] == 3
    assert frontend.error is None
    assert commanded(f"tcp://127.0.0.1:{port}") == []
    assert files_in(socket_folder) == []
    assert "(engine) " in capfd.readouterr().err
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


async def test_an_engine_that_fails_while_loading_is_quoted(tmp_path: Path) -> None:
    failing = "echo about to fail; echo 'ValueError: no such weights' >&2; exit 3"
    async with serving(managed(tmp_path, engine=failing)) as frontend:
        await frontend.ended.wait()

    assert isinstance(cause(frontend), StartupFailed)
    assert str(cause(frontend)) == (
        "before it was ready, the managed engine ended with status 3\nits last lines were:\n"
        "  | about to fail\n  | ValueError: no such weights"
    )


async def test_an_engine_that_ends_well_while_loading_has_failed_as_well(tmp_path: Path) -> None:
    async with serving(managed(tmp_path, engine="exit 0")) as frontend:
        await frontend.ended.wait()

    assert "ended with status 0" in str(cause(frontend))


async def test_an_engine_that_is_not_ready_in_time_is_stopped(tmp_path: Path) -> None:
    ids = tmp_path / "pid"
    settings = managed(tmp_path, engine=f"echo $$ > {ids}; exec sleep 600", ready_timeout=0.5)
    async with serving(settings) as frontend:
        await frontend.ended.wait()

    assert isinstance(frontend.error, StartupFailed)
    assert is_gone(ids)


async def test_without_restarts_the_death_of_an_engine_ends_its_streams_and_the_frontend(
    tmp_path: Path,
) -> None:
    settings = managed(tmp_path, restart=RestartConfig(kind="never"))
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        assert frontend.serving is not None
        (pid,) = commanded(str(frontend.serving.handshake_address))
        async with slow_stream(frontend, 20_000) as data:
            os.kill(pid, signal.SIGKILL)
        await frontend.ended.wait()

    assert data[-1] == "[DONE]"
    assert '"error"' in data[-2]
    assert isinstance(cause(frontend), EngineDied)
    assert "was killed by SIGKILL" in str(cause(frontend))


async def test_a_drain_comes_before_the_engines_end(tmp_path: Path) -> None:
    async with serving(managed(tmp_path)) as frontend:
        await frontend.wait_ready()
        async with slow_stream(frontend, 20_000) as data:
            frontend.signal()
        await frontend.ended.wait()

    assert finish_reason(data) == "abort"
    assert frontend.error is None


async def test_one_signal_is_enough_while_the_engine_loads(tmp_path: Path) -> None:
    ids = tmp_path / "pid"
    settings = managed(tmp_path, engine=f"echo $$ > {ids}; exec sleep 600")
    async with serving(settings) as frontend:
        await wait_until(lambda: ids.exists() and ids.read_text().endswith("\n"))
        frontend.signal(signal.SIGINT)
        await frontend.ended.wait()

    assert frontend.error is None
    assert is_gone(ids)


async def test_a_second_signal_kills_an_engine_that_takes_its_time(tmp_path: Path) -> None:
    ids = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {ids}; while :; do sleep 1; done"
    async with serving(managed(tmp_path, engine=stubborn)) as frontend:
        await wait_until(lambda: ids.exists() and ids.read_text().endswith("\n"))
        begun = trio.current_time()
        frontend.signal()
        await trio.sleep(0.1)
        frontend.signal()
        await frontend.ended.wait()

    assert frontend.error is None
    assert trio.current_time() - begun < 4.0
    assert is_gone(ids)


async def test_an_interpreter_without_vllm_is_one_clear_error(tmp_path: Path) -> None:
    python = fake_python(tmp_path, probe=1)
    async with serving(config(engine=EngineConfig(python=python))) as frontend:
        await frontend.ended.wait()

    assert isinstance(cause(frontend), ConfigurationError)
    assert f"{python} has no vLLM" in str(cause(frontend))
    assert "pip install vllm" in str(cause(frontend))


async def test_an_interpreter_that_is_not_there_is_named() -> None:
    async with serving(config(engine=EngineConfig(python="/no/python"))) as frontend:
        await frontend.ended.wait()

    assert "cannot run the engine's interpreter /no/python" in str(cause(frontend))


@pytest.mark.parametrize(
    "phase",
    [
        "starting",
        "draining",
        pytest.param("loading", marks=pytest.mark.slow),
        pytest.param("serving", marks=pytest.mark.slow),
        pytest.param("restarting", marks=pytest.mark.slow),
    ],
)
async def test_a_killed_frontend_leaves_nothing(
    tmp_path: Path, socket_folder: Path, phase: str
) -> None:
    """SIGKILL at any moment: within five seconds no process and no socket file is left."""
    python = fake_python(tmp_path, engine="exec sleep 600" if phase == "loading" else SIMULATE)
    uds = tmp_path / "socket"
    arguments = ["serve", str(TINY_CHAT), "--python", python, "--uds", str(uds)]
    frontend = await trio.lowlevel.open_process(
        [sys.executable, "-m", "vllmfront", *arguments, "--shutdown-timeout", "60"]
    )
    with trio.fail_after(BUDGET):
        async with _reached(phase, uds, frontend.pid):
            below = descendants(frontend.pid)
            frontend.kill()
            await frontend.wait()
    with trio.fail_after(5.0):
        await wait_until(lambda: not any(map(alive, below)))
        await wait_until(lambda: files_in(socket_folder) == [] and not exists(uds))

    assert phase == "starting" or len(below) >= 2


def engines_below(pid: int) -> list[int]:
    """List the stand-ins that the frontend *pid* runs."""
    below = descendants(pid)
    return [each for each in commanded("vllmfront simulate") if each in below and alive(each)]


@asynccontextmanager
async def _reached(phase: str, uds: Path, pid: int) -> AsyncGenerator[None]:
    """Wait until the frontend is in that phase, and keep it there."""
    if phase != "starting":
        await wait_until(lambda: exists(uds) and len(descendants(pid)) >= 2)
    if phase in {"starting", "loading"}:
        yield
        return
    transport = httpx.AsyncHTTPTransport(uds=str(uds))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        await wait_health(http, 200)
        if phase == "restarting":
            (first,) = engines_below(pid)
            os.kill(first, signal.SIGKILL)
            await wait_until(lambda: engines_below(pid) not in ([], [first]))
            yield
            return
        body = {"prompt": "hi", "max_tokens": 20_000, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            if phase == "draining":
                os.kill(pid, signal.SIGTERM)
                await wait_health(http, 503)
            yield
