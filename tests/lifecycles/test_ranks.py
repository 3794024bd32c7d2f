"""Several managed engines: each by itself where they do not know each other, else all together."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from tests.lifecycles.rig import (
    SIMULATE,
    Frontend,
    alive,
    commanded,
    config,
    fake_python,
    serving,
    wait_until,
)
from vllmfront.errors import FirstStartFailed, RestartLimitExceeded
from vllmfront.lifecycles import EngineConfig, RestartConfig, ServeConfig
from vllmfront.lifecycles import _engine as managed_engine

QUICK = RestartConfig(backoff=0.05, backoff_cap=0.2)


def managed(folder: Path, *, engine: str = SIMULATE, **fields: Any) -> ServeConfig:
    python = fake_python(folder, engine=engine)
    return config(
        engine=EngineConfig(
            **{"python": python, "data_parallel_size": 2, "restart": QUICK, **fields}
        )
    )


def process(frontend: Frontend, rank: int) -> int:
    """Return the process that runs *rank* and no other."""
    (found,) = processes(frontend, rank)
    return found


def processes(frontend: Frontend, rank: int) -> list[int]:
    """List the processes that run *rank* now: one, or none."""
    assert frontend.serving is not None
    return commanded(f"{frontend.serving.handshake_address} --start-rank {rank} --ranks 1")


async def pinned(frontend: Frontend, rank: int) -> httpx.Response:
    return await frontend.http.post(
        "/v1/completions",
        json={"prompt": "hi", "max_tokens": 3},
        headers={"X-data-parallel-rank": str(rank)},
    )


async def states(frontend: Frontend) -> str:
    return str((await frontend.http.get("/ready")).json()["reason"])


async def test_a_stream_does_not_notice_that_another_rank_dies_and_comes_back(
    tmp_path: Path,
) -> None:
    """Byte for byte, its tokens are those of a run in which nobody died."""
    body = {"prompt": "hi", "max_tokens": 200, "seed": 7, "stream": True, "ignore_eos": True}
    header = {"X-data-parallel-rank": "0"}

    async with serving(managed(tmp_path)) as frontend:
        await frontend.wait_ready()
        calm = await text_of(frontend, body, header, lambda: None)
        victim = process(frontend, 1)
        disturbed = await text_of(frontend, body, header, lambda: os.kill(victim, signal.SIGKILL))
        survivor = process(frontend, 0)
        await wait_until(lambda: processes(frontend, 1) not in ([], [victim]))
        while await states(frontend) != "all 2 engines serve":
            pass
        answer = await pinned(frontend, 1)

        assert process(frontend, 1) != victim
        assert process(frontend, 0) == survivor
    assert calm == disturbed
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert frontend.error is None
    assert not alive(survivor)


async def text_of(
    frontend: Frontend, body: dict[str, Any], headers: dict[str, str], act: Callable[[], None]
) -> str:
    """Stream an answer, and *act* once it has begun; return its whole text.

    How many tokens are in an event is the clock's business.
    """
    events: list[str] = []
    async with frontend.http.stream(
        "POST", "/v1/completions", json=body, headers=headers
    ) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                if not events:
                    act()
                events.append(line.removeprefix("data: "))
    assert events.pop() == "[DONE]"
    assert len(events) > 2
    choices = [json.loads(event)["choices"][0] for event in events]
    assert choices[-1]["finish_reason"] == "length"
    return "".join(choice["text"] for choice in choices)


async def test_a_rank_that_does_not_come_up_ends_the_start(tmp_path: Path) -> None:
    failing = f"[ $start = 1 ] && {{ echo no weights; exit 3; }}; {SIMULATE}"
    async with serving(managed(tmp_path, engine=failing)) as frontend:
        await frontend.ended.wait()

    assert isinstance(frontend.error, FirstStartFailed)
    assert "the managed engine 1 did not start" in str(frontend.error)
    assert "before it was ready, the managed engine 1 ended with status 3" in str(
        frontend.error.__cause__
    )


@pytest.mark.slow
async def test_a_rank_that_ends_too_often_ends_all(tmp_path: Path) -> None:
    settings = managed(tmp_path, restart=RestartConfig(kind="never"))
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        survivor = process(frontend, 0)
        os.kill(process(frontend, 1), signal.SIGKILL)
        await frontend.ended.wait()

    assert isinstance(frontend.error, RestartLimitExceeded)
    assert "the managed engine 1 failed, and is not started again" in str(frontend.error)
    assert not alive(survivor)


@pytest.mark.slow
async def test_all_ranks_are_stopped_at_the_same_time(tmp_path: Path) -> None:
    """One after the other, those that take long would not have the time that they may take."""
    slow_end = (
        f"{sys.executable} -m vllmfront simulate --handshake tcp://$host:$port --start-rank "
        "$start --ranks 1 --vocab-size 2048 & trap 'sleep 1; kill $!; exit' TERM; wait"
    )
    async with serving(managed(tmp_path, engine=slow_end, data_parallel_size=4)) as frontend:
        await frontend.wait_ready()
        begun = trio.current_time()
        frontend.signal()
        await frontend.ended.wait()

    assert frontend.error is None
    assert 1.0 <= trio.current_time() - begun < 3.5


@pytest.mark.slow
async def test_engines_that_step_together_are_lost_and_come_back_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is lost; what comes then is served by both, in waves that begin anew."""
    monkeypatch.setattr(managed_engine, "_LINGER", 0.1)
    plan = tmp_path / "plan.json"
    crash = {"kind": "crash", "rank": 1, "on": "request", "at": 2}
    plan.write_text(json.dumps({"faults": [crash]}))
    once = (
        f"[ -e {tmp_path}/begun ] || faults='--faults {plan}'; touch {tmp_path}/begun; "
        f"{SIMULATE} --lockstep $faults"
    )
    settings = managed(tmp_path, engine=once)
    mixture = attrs.evolve(settings.model, overrides={"num_experts": 8})
    async with serving(attrs.evolve(settings, model=mixture)) as frontend:
        await frontend.wait_ready()
        before = group(frontend)
        answers = [await pinned(frontend, rank) for rank in (1, 0)]
        answers.append(await pinned(frontend, 1))
        answers += [await pinned(frontend, rank) for rank in (0, 1)]
        after = group(frontend)

    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [3] * 5
    assert before != after
    assert not alive(before)
    assert frontend.error is None


def group(frontend: Frontend) -> int:
    """Return the process that runs both ranks."""
    assert frontend.serving is not None
    (found,) = commanded(f"{frontend.serving.handshake_address} --start-rank 0 --ranks 2")
    return found
