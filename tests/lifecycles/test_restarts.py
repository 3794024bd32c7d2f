"""Managed engines that end, hang or never come back: each leads through the policy."""

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from tests.lifecycles.rig import BUDGET, Frontend, alive, config, serving, wait_until
from tests.lifecycles.test_external import slow_stream
from vllmfront.errors import EngineDied, FirstStartFailed, RestartLimitExceeded, StartupFailed
from vllmfront.lifecycles import EngineConfig, RestartConfig, RestartIntensity, ServeConfig
from vllmfront.testing import (
    Fault,
    FaultKind,
    FaultPlan,
    FlakyProgram,
    ProcessFault,
    ProcessFaultKind,
    kill,
    stopped,
    write_program,
    write_python,
)

SIMULATE = [
    *(sys.executable, "-m", "vllmfront", "simulate"),
    *("--vocab-size", "2048", "--step-ms", "5"),
]
QUICK = RestartConfig(backoff=0.05, backoff_cap=0.2)


def engine(
    folder: Path,
    *faults: ProcessFault,
    restart: RestartConfig = QUICK,
    command: list[str] = SIMULATE,
    **fields: Any,
) -> tuple[ServeConfig, FlakyProgram]:
    """Make a frontend whose engine fails as told, life by life."""
    program = write_program(folder, command, faults)
    python = str(write_python(folder, program))
    return config(engine=EngineConfig(python=python, restart=restart, **fields)), program


def dies_at_start(life: int) -> ProcessFault:
    return ProcessFault(kind=ProcessFaultKind.DIE_AT_START, life=life, status=3)


async def ready(frontend: Frontend) -> dict[str, Any]:
    body: dict[str, Any] = (await frontend.http.get("/ready")).json()
    return body


async def process(frontend: Frontend) -> dict[str, Any]:
    """Return what ``/supervisor`` says of the engine's process."""
    tree = (await frontend.http.get("/supervisor")).json()["tree"]
    (child,) = (each for each in tree["children"] if each["name"] == "engine")
    (found,) = child["tree"]["children"]
    return dict(found)


async def wait_process(frontend: Frontend, **wanted: object) -> dict[str, Any]:
    """Ask until the engine's process is as *wanted*."""
    while not wanted.items() <= (shown := await process(frontend)).items():  # noqa: ASYNC110 (another process)
        await trio.sleep(0.01)
    return shown


@attrs.define
class Probes:
    """What clients that ask again and again have seen."""

    states: list[str] = attrs.field(factory=list)
    """Of ``/ready``, without repetitions."""

    begun: trio.Event = attrs.field(factory=trio.Event)

    def take(self, state: str) -> None:
        self.begun.set()
        if self.states[-1:] != [state]:
            self.states.append(state)


@asynccontextmanager
async def probing(frontend: Frontend) -> AsyncGenerator[Probes]:
    """Ask ``/ready`` on ever new connections during the block; none may be refused."""
    probes = Probes()

    async def probe() -> None:
        async with httpx.AsyncClient(base_url=frontend.http.base_url) as http:
            while True:
                answer = await http.get("/ready", headers={"connection": "close"})
                probes.take(answer.json()["state"])
                assert answer.status_code == (200 if probes.states[-1] == "ready" else 503)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe)
        await probes.begun.wait()
        yield probes
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda pid: os.kill(pid, signal.SIGKILL), "was killed by SIGKILL (9)"),
        # The stand-in ends well when it is told to, which nobody but the frontend should do.
        pytest.param(
            lambda pid: os.kill(pid, signal.SIGTERM),
            "ended with status 0",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["killed", "status 0"],
)
async def test_an_engine_that_ends_is_replaced_while_the_listener_stays(
    tmp_path: Path, end: Callable[[int], None], reason: str
) -> None:
    settings, program = engine(tmp_path)
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        async with probing(frontend) as probes:
            end(program.pids()[0])
            shown = await wait_process(frontend, state="ready", generation=2)
            answer = await frontend.generate(max_tokens=3)

    assert probes.states == ["ready", "recovering", "ready"]
    assert reason in shown["first_failure"]
    assert shown["restarts"] == 1
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert frontend.error is None
    assert not any(map(alive, program.pids()))


def faulty(folder: Path, fault: Fault) -> list[str]:
    """Return what runs an engine with a fault."""
    plan = folder / "faults.json"
    plan.write_text(FaultPlan(faults=[fault]).to_json())
    return [*SIMULATE, "--faults", str(plan), "--first-life", "{life}"]


async def greedy(frontend: Frontend) -> str:
    """Return the text of a streamed answer that is the same each time."""
    body = {
        "prompt": "hi",
        "max_tokens": 200,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    text = ""
    async with frontend.http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "choices" in event, event
                text += event["choices"][0]["text"]
    return text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(kind=FaultKind.CRASH, at=240, life=0), "the managed engine"),
        (Fault(kind=FaultKind.DIE, at=240, life=0), "the managed engine"),
        (Fault(kind=FaultKind.HANG, at=240, life=0), "--engine-stall-restart"),
    ],
    ids=["closed sockets", "sentinel", "silent"],
)
async def test_whatever_ends_an_engine_its_streams_go_on(
    tmp_path: Path, fault: Fault, reason: str
) -> None:
    command = faulty(tmp_path, fault)
    settings, program = engine(tmp_path, command=command, stall_timeout=1.0, stall_restart=2.0)
    async with serving(settings, budget=2 * BUDGET) as frontend:
        await frontend.wait_ready()
        undisturbed = await greedy(frontend)
        disturbed = await greedy(frontend)
        shown = await process(frontend)

    assert disturbed == undisturbed != ""
    assert (shown["generation"], shown["restarts"]) == (2, 1)
    assert reason in shown["first_failure"]
    assert not any(map(alive, program.pids()))


@pytest.mark.slow
async def test_an_engine_that_only_babbles_is_replaced(tmp_path: Path) -> None:
    command = faulty(tmp_path, Fault(kind=FaultKind.GARBLE, life=0, count=1000))
    settings, _ = engine(tmp_path, command=command)
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        statuses = []
        while (shown := await process(frontend))["generation"] == 1:
            statuses.append((await frontend.generate(max_tokens=3)).status_code)

    assert "unreadable messages" in shown["first_failure"]
    assert statuses[-1] == 200
    assert set(statuses) == {200, 503}


@pytest.mark.slow
async def test_a_status_that_tells_of_a_failure_is_one(tmp_path: Path) -> None:
    command = ["sh", "-c", 'trap "exit 3" TERM; "$@" & wait', "sh", *SIMULATE]
    settings, program = engine(tmp_path, command=command)
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        os.kill(program.pids()[0], signal.SIGTERM)
        shown = await wait_process(frontend, state="ready", generation=2)

    assert "ended with status 3" in shown["last_failure"]


@pytest.mark.slow
async def test_a_restart_that_fails_counts_as_one(tmp_path: Path) -> None:
    settings, program = engine(tmp_path, dies_at_start(1))
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        kill(program.pids()[0])
        shown = await wait_process(frontend, state="ready", generation=3)

    assert shown["restarts"] == 2
    assert "was killed by SIGKILL" in shown["first_failure"]
    assert "before it was ready, the managed engine ended with status 3" in shown["last_failure"]
    assert "life 1 ends at its start" in shown["last_failure"]


@pytest.mark.slow
async def test_a_handshake_that_never_ends_counts_as_one(tmp_path: Path) -> None:
    second_hangs = 'if [ "$1" = 1 ]; then exec sleep 600; fi; shift; exec "$@"'
    command = ["sh", "-c", second_hangs, "sh", "{life}", *SIMULATE]
    settings, program = engine(tmp_path, command=command, ready_timeout=10.0)
    async with serving(settings, budget=2 * BUDGET) as frontend:
        await frontend.wait_ready()
        kill(program.pids()[0])
        shown = await wait_process(frontend, state="ready", generation=3)

    assert "HELLO" in shown["last_failure"]
    assert "within 10 seconds" in shown["last_failure"]
    assert not alive(program.pids()[1])


async def test_a_first_start_that_fails_ends_the_program(tmp_path: Path) -> None:
    settings, program = engine(tmp_path, dies_at_start(0))
    async with serving(settings) as frontend:
        await frontend.ended.wait()

    assert isinstance(frontend.error, FirstStartFailed)
    assert str(frontend.error) == "the managed engine did not start"
    assert isinstance(frontend.error.__cause__, StartupFailed)
    assert "life 0 ends at its start" in str(frontend.error.__cause__)
    assert len(program.pids()) == 1


@pytest.mark.slow
async def test_backoff_is_shown_with_its_next_try(tmp_path: Path) -> None:
    settings, program = engine(tmp_path, restart=RestartConfig(backoff=60.0))
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        kill(program.pids()[0])
        shown = await wait_process(frontend, state="backoff")
        health = await ready(frontend)
        refused = await frontend.generate()

    assert 50.0 < shown["next_try"] <= 60.0
    assert shown["generation"] == 1
    assert health["state"] == "recovering"
    assert health["reason"] == "The engine process was killed by SIGKILL (9)"
    assert health["retry_after"] > 50
    assert refused.status_code == 503
    assert refused.json()["error"]["reason"] == "recovering"
    assert int(refused.headers["retry-after"]) > 50
    assert frontend.error is None
    assert len(program.pids()) == 1


async def test_one_failure_too_many_is_told_to_clients_and_ends_the_program(
    tmp_path: Path,
) -> None:
    restart = attrs.evolve(QUICK, intensity=RestartIntensity(1, 60.0))
    settings, program = engine(tmp_path, dies_at_start(1), restart=restart)
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        async with slow_stream(frontend, 20_000) as data:
            kill(program.pids()[0])
        await frontend.ended.wait()

    assert data[-1] == "[DONE]"
    assert "failed more often than --engine-restart-intensity 1/60 allows" in data[-2]
    assert isinstance(frontend.error, RestartLimitExceeded)
    assert str(frontend.error).startswith(
        "the managed engine failed more often than --engine-restart-intensity 1/60 allows, "
        "and is not started again; "
        "its first failure was: the managed engine was killed by SIGKILL (9)"
    )
    assert isinstance(frontend.error.__cause__, StartupFailed)
    assert not any(map(alive, program.pids()))


@pytest.mark.slow
async def test_without_restarts_one_failure_is_enough(tmp_path: Path) -> None:
    settings, program = engine(tmp_path, restart=RestartConfig(kind="never"))
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        kill(program.pids()[0])
        await frontend.ended.wait()

    assert str(frontend.error) == "the managed engine failed, and is not started again"
    assert isinstance(frontend.error.__cause__ if frontend.error else None, EngineDied)
    assert len(program.pids()) == 1


@pytest.mark.slow
async def test_a_stall_is_told_and_passes(tmp_path: Path) -> None:
    settings, program = engine(tmp_path, stall_timeout=0.4)
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        async with probing(frontend) as probes, slow_stream(frontend, 400) as data:
            with stopped(program.pids()[0]):
                while (health := await ready(frontend))["state"] != "stalled":  # noqa: ASYNC110 (another process)
                    await trio.sleep(0.01)
                alive_answer = await frontend.http.get("/live")

    assert probes.states == ["ready", "stalled", "ready"]
    assert "has been silent for" in health["reason"]
    assert alive_answer.status_code == 200
    assert data[-1] == "[DONE]"
    assert len(program.pids()) == 1


@pytest.mark.slow
async def test_a_stall_that_lasts_leads_to_a_restart_where_it_should(tmp_path: Path) -> None:
    settings, program = engine(tmp_path, stall_timeout=0.4, stall_restart=0.8)
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        async with slow_stream(frontend, 400) as data:
            with stopped(program.pids()[0]):
                shown = await wait_process(frontend, state="ready", generation=2)

    assert "--engine-stall-restart" in shown["first_failure"]
    assert data[-1] == "[DONE]"
    assert not alive(program.pids()[0])


@pytest.mark.parametrize(
    "phase",
    [
        "backoff",
        pytest.param("loading", marks=pytest.mark.slow),
        pytest.param("restarting", marks=pytest.mark.slow),
    ],
)
async def test_a_signal_ends_it_in_time_whatever_the_engine_does(
    tmp_path: Path, phase: str
) -> None:
    hangs = {"loading": "0", "backoff": "9", "restarting": "1"}[phase]
    script = f'if [ "$1" = {hangs} ]; then exec sleep 600; fi; shift; exec "$@"'
    settings, program = engine(
        tmp_path,
        command=["sh", "-c", script, "sh", "{life}", *SIMULATE],
        restart=RestartConfig(backoff=60.0) if phase == "backoff" else QUICK,
    )
    async with serving(settings) as frontend:
        if phase == "loading":
            await wait_until(lambda: bool(program.pids()))
        else:
            await frontend.wait_ready()
            kill(program.pids()[0])
            await wait_process(frontend, state="backoff" if phase == "backoff" else "starting")
        begun = trio.current_time()
        frontend.signal()
        await frontend.ended.wait()

    assert frontend.error is None
    assert trio.current_time() - begun < BUDGET / 4
    assert not any(map(alive, program.pids()))


async def test_requests_that_wait_for_an_engine_are_refused_once_none_will_come(
    tmp_path: Path,
) -> None:
    settings, program = engine(tmp_path, restart=RestartConfig(backoff=60.0))
    settings = attrs.evolve(settings, server=attrs.evolve(settings.server, shutdown_timeout=60.0))
    async with serving(settings) as frontend:
        await frontend.wait_ready()
        async with slow_stream(frontend, 20_000) as data:
            kill(program.pids()[0])
            await wait_process(frontend, state="backoff")
            frontend.signal()
        await frontend.ended.wait()

    assert data[-1] == "[DONE]"
    assert "The server is shutting down" in data[-2]
    assert frontend.error is None
