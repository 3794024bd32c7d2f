"""Several managed engines, real ones on the CPU."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

import httpx
import pytest
import trio

from tests.lifecycles.rig import (
    TINY_CHAT,
    Frontend,
    alive,
    commanded,
    config,
    serving,
    wait_health,
    wait_until,
)
from tests.lifecycles.test_ranks import text_of
from tests.real_engine._process import ENGINE_ARGUMENTS, ENGINE_ENVIRONMENT
from vllmfront.lifecycles import EngineConfig, ModelConfig, RestartConfig

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BUDGET = 400.0


@pytest.fixture
def engines(real_engine_python: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    for name, value in ENGINE_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return EngineConfig(
        python=str(real_engine_python),
        arguments=tuple(ENGINE_ARGUMENTS),
        data_parallel_size=2,
        restart=RestartConfig(backoff=0.1, backoff_cap=1.0),
    )


def found_cores(frontend: Frontend) -> list[list[int]]:
    """List the processes of engine cores that there are now, by rank."""
    assert frontend.serving is not None
    port = str(frontend.serving.handshake_address).rpartition(":")[2]
    below = commanded(f"--data-parallel-rpc-port {port}")
    titles: dict[int, bytes] = {}
    for pid in below:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            titles[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return [
        [pid for pid, title in titles.items() if title.startswith(b"VLLM::EngineCore_DP%d" % rank)]
        for rank in (0, 1)
    ]


def cores(frontend: Frontend) -> list[int]:
    """List the processes of engine cores, by rank."""
    [[first], [second]] = found_cores(frontend)
    return [first, second]


async def reason(frontend: Frontend) -> str:
    return str((await frontend.http.get("/ready")).json()["reason"])


async def wait_all(frontend: Frontend) -> None:
    while await reason(frontend) != "all 2 engines serve":  # noqa: ASYNC110 (no event)
        await trio.sleep(0.1)


async def pinned(frontend: Frontend, rank: int) -> httpx.Response:
    return await frontend.http.post(
        "/v1/completions",
        json={"prompt": "hi", "max_tokens": 3, "ignore_eos": True},
        headers={"X-data-parallel-rank": str(rank)},
    )


async def test_a_rank_that_is_killed_disturbs_no_other_and_comes_back(
    engines: EngineConfig,
) -> None:
    body = {"prompt": "hi", "max_tokens": 800, "temperature": 0, "stream": True, "ignore_eos": True}
    header = {"X-data-parallel-rank": "0"}

    async with serving(config(engine=engines), budget=BUDGET) as frontend:
        await frontend.wait_ready()
        first, second = cores(frontend)
        calm = await text_of(frontend, body, header, lambda: None)
        disturbed = await text_of(frontend, body, header, lambda: os.kill(second, signal.SIGKILL))
        await wait_until(lambda: found_cores(frontend)[1] not in ([], [second]), BUDGET)
        await wait_all(frontend)
        answer = await pinned(frontend, 1)

        assert cores(frontend)[0] == first
        assert cores(frontend)[1] != second
    assert calm == disturbed
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert frontend.error is None
    assert not alive(first)


async def test_engines_that_step_together_come_back_together(
    engines: EngineConfig, tmp_path: Path
) -> None:
    """The loss of one is that of all; then waves go on, at each engine and at all of them."""
    folder = shutil.copytree(TINY_CHAT, tmp_path / "tiny-moe")
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_experts": 8}))
    settings = config(model=ModelConfig(model=str(folder)), engine=engines)

    async with serving(settings, budget=BUDGET) as frontend:
        await frontend.wait_ready()
        before = cores(frontend)
        answers = [await pinned(frontend, rank) for rank in (0, 1, 1, 0)]
        os.kill(before[1], signal.SIGKILL)
        await wait_health(frontend.http, 503)
        await wait_all(frontend)
        after = cores(frontend)
        answers += [await pinned(frontend, rank) for rank in (1, 0, 0, 1)]

    assert not set(before) & set(after)
    assert not any(map(alive, before))
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [3] * 8
    assert frontend.error is None
