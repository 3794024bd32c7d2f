"""Workers that are killed, whenever that is; and the end of the main process."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trio

from tests.lifecycles.rig import (
    BUDGET,
    TINY_CHAT,
    Frontend,
    alive,
    config,
    descendants,
    fake_python,
    serving,
    wait_health,
    wait_until,
)
from tests.lifecycles.workers.rig import (
    Stream,
    ask,
    client_of,
    inside,
    metrics,
    settings,
    wait_workers,
    workers_serving,
)
from vllmfront.errors import RestartLimitExceeded
from vllmfront.lifecycles import EngineConfig, RestartConfig, ServerConfig
from vllmfront.lifecycles.workers import _beat
from vllmfront.testing import write_program, write_python

pytestmark = pytest.mark.slow

GENERATED = 'vllm:generation_tokens_total{engine="0",model_name="tiny"}'
ENGINE = [
    *(sys.executable, "-m", "vllmfront", "simulate"),
    *("--vocab-size", "2048", "--step-ms", "5"),
]


async def start_streams(frontend: Frontend, nursery: trio.Nursery, tokens: int) -> list[Stream]:
    """Begin two streams at each worker."""
    streams = [Stream() for _ in range(4)]
    for stream in streams:
        nursery.start_soon(stream.read, frontend, tokens)
    for stream in streams:
        await stream.begun.wait()
    return streams


async def wait_in_flight(frontend: Frontend, count: int) -> None:
    """Wait until the engine itself runs so many requests, as all processes were told."""
    name = 'vllm:num_requests_running{engine="0",model_name="tiny"}'
    while (await metrics(frontend))[name] != count:  # noqa: ASYNC110 (other processes, no event)
        await trio.sleep(0.02)


async def test_a_worker_that_stands_still_is_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_beat, "STUCK_SECONDS", 2.0)
    async with workers_serving() as frontend:
        pids = await wait_workers(frontend)
        os.kill(pids[1], signal.SIGSTOP)
        again = await wait_workers(frontend, but={1: pids[1], 2: -1})
        async with client_of(frontend) as client:
            answer = await client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})

    assert again[2] == pids[2]
    assert answer.status_code == 200
    assert "its event loop had stood still" in caplog.text


async def test_a_worker_that_is_killed_takes_its_own_streams_with_it_alone() -> None:
    async with workers_serving(step_time=0.01) as frontend, trio.open_nursery() as nursery:
        pids = await wait_workers(frontend)
        streams = await start_streams(frontend, nursery, 300)
        before = await metrics(frontend)
        os.kill(pids[1], signal.SIGKILL)
        await wait_in_flight(frontend, 2)  # what it has left is aborted at once
        later = await metrics(frontend)
        again = await wait_workers(frontend, but={1: pids[1]})
        shown = await inside(frontend)
        for _ in range(8):
            async with client_of(frontend) as client:
                body = {"prompt": "hi", "max_tokens": 2}
                assert (await client.post("/v1/completions", json=body)).status_code == 200
        while sum(one.finished is not None for one in streams) < 2:  # noqa: ASYNC110 (no event)
            await trio.sleep(0.02)
        after = await metrics(frontend)

    cut = [stream for stream in streams if stream.error is not None]
    whole = [stream for stream in streams if stream.error is None]
    assert len(cut) == len(whole) == 2
    assert {stream.finished for stream in whole} == {"length"}
    assert len({stream.text for stream in whole}) == 1
    assert all(whole[0].text.startswith(stream.text) for stream in cut)
    assert again[2] == pids[2]
    assert before[GENERATED] <= later[GENERATED] <= after[GENERATED]
    for name, value in before.items():
        if "_total" in name or name.endswith(("_count", "_sum")) or "_bucket" in name:
            assert after[name] >= value, name
    (engine,) = shown["engines"]["ranks"]
    assert (engine["state"], engine["incarnation"]) == ("ready", 1)


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.5, 0.8, 1.2, 1.6])
async def test_a_worker_that_is_killed_as_it_starts_comes_back(delay: float) -> None:
    """Whatever it was doing: imports, the first words, sockets, the model's files."""
    async with workers_serving() as frontend:
        pids = await wait_workers(frontend)
        os.kill(pids[2], signal.SIGKILL)
        await wait_until(lambda: not alive(pids[2]))
        second = await other_pid(frontend, 2, pids[2])
        await trio.sleep(delay)
        os.kill(second, signal.SIGKILL)
        again = await wait_workers(frontend, but={2: pids[2], 3: second})
        for _ in range(4):
            assert (await ask(frontend, "/health")).status_code == 200

        assert again[1] == pids[1]


async def other_pid(frontend: Frontend, worker: int, former: int) -> int:
    """Return the pid of a worker's next process, as soon as there is one."""
    while True:
        for one in (await inside(frontend))["workers"]:
            if one["worker"] == worker and one["pid"] != former:
                pid: int = one["pid"]
                return pid
        await trio.sleep(0.01)


async def test_all_workers_killed_at_once_come_back_and_clients_wait_meanwhile() -> None:
    async with workers_serving() as frontend:
        pids = await wait_workers(frontend)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in pids.values():
            await wait_until(lambda pid=pid: not alive(pid))  # type: ignore[misc]
        async with client_of(frontend) as client:
            # Nobody accepts now, and nobody refuses: the kernel's queue keeps it.
            answer = await client.get("/live")

        assert answer.status_code == 200
        await wait_workers(frontend, but=pids)


async def test_workers_that_die_again_and_again_end_the_program() -> None:
    async with workers_serving() as frontend:
        await wait_workers(frontend)
        while not frontend.ended.is_set():
            for pid in descendants(os.getpid()):
                if b"worker" in command_of(pid):
                    os.kill(pid, signal.SIGKILL)
            await trio.sleep(0.1)

    assert isinstance(frontend.error, RestartLimitExceeded)
    assert "was killed by SIGKILL" in str(frontend.error.__cause__)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_the_end_of_the_main_process_is_that_of_workers_and_engines(tmp_path: Path) -> None:
    with trio.fail_after(2 * BUDGET):
        port = await free_port()
        python = fake_python(tmp_path)
        main = await trio.lowlevel.open_process(
            [
                *(sys.executable, "-m", "vllmfront", "serve", str(TINY_CHAT), "--python", python),
                *("--port", str(port), "--api-server-count", "2"),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", timeout=BUDGET
            ) as http:
                await wait_listening(port)
                await wait_health(http, 200)
                await wait_workers(Frontend(http))
            below = descendants(main.pid)
            assert len(below) >= 4  # two workers, the reaper, the engine
            main.send_signal(signal.SIGKILL)
            await main.wait()
            await wait_until(lambda: not any(map(alive, below)))
        finally:
            main.kill()


async def free_port() -> int:
    with trio.socket.socket() as sock:
        await sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def wait_listening(port: int) -> None:
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(0.05)
        else:
            await stream.aclose()
            return


async def test_a_worker_that_is_told_to_leave_finishes_first_and_is_replaced() -> None:
    wanted = settings(shutdown_timeout=20.0)
    async with workers_serving(wanted, step_time=0.01) as frontend:
        pids = await wait_workers(frontend)
        async with trio.open_nursery() as nursery:
            streams = await start_streams(frontend, nursery, 150)
            os.kill(pids[1], signal.SIGTERM)
        again = await wait_workers(frontend, but={1: pids[1]})

        assert [stream.finished for stream in streams] == ["length"] * 4
        assert again[2] == pids[2]


async def test_all_workers_drain_at_the_same_time() -> None:
    wanted = settings(shutdown_timeout=20.0)
    async with workers_serving(wanted, step_time=0.01) as frontend:
        async with trio.open_nursery() as nursery:
            streams = await start_streams(frontend, nursery, 150)
            frontend.signal()
            await wait_health(frontend.http, 503)
            refused = await frontend.generate()
        await frontend.ended.wait()

        with pytest.raises(httpx.TransportError):
            await frontend.http.get("/health")

    assert refused.status_code == 503
    assert "shutting down" in refused.json()["error"]["message"]
    assert [stream.finished for stream in streams] == ["length"] * 4
    assert frontend.error is None


async def test_the_one_deadline_ends_streams_of_all_workers_in_words() -> None:
    wanted = settings(shutdown_timeout=0.5)
    async with workers_serving(wanted, step_time=0.01) as frontend:
        async with trio.open_nursery() as nursery:
            streams = await start_streams(frontend, nursery, 20_000)
            begun = trio.current_time()
            frontend.signal()
        await frontend.ended.wait()
        seconds = trio.current_time() - begun

    assert [stream.finished for stream in streams] == ["abort"] * 4
    assert seconds < 5
    assert frontend.error is None


async def test_requests_of_all_workers_survive_the_engine(tmp_path: Path) -> None:
    """They wait for its next process, and go on there."""
    program = write_program(tmp_path, ENGINE, ())
    python = str(write_python(tmp_path, program))
    quick = RestartConfig(backoff=0.05, backoff_cap=0.2)
    wanted = config(
        server=ServerConfig(served_model_names=("tiny",), api_server_count=2),
        engine=EngineConfig(python=python, restart=quick),
    )
    async with serving(wanted, budget=2 * BUDGET) as frontend:
        await frontend.wait_ready()
        await wait_workers(frontend)
        async with trio.open_nursery() as nursery:
            streams = await start_streams(frontend, nursery, 300)
            os.kill(program.pids()[-1], signal.SIGKILL)
        after = await metrics(frontend)

    assert [stream.finished for stream in streams] == ["length"] * 4
    assert all(stream.error is None for stream in streams)
    assert after['vllmfront:engine_request_resends_total{kind="continued"}'] == 4
    assert frontend.error is None


async def test_signals_reach_workers_or_are_refused_in_words(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    async with workers_serving() as frontend:
        frontend.signal(signal.SIGHUP)
        frontend.signal(signal.SIGUSR2)
        said = ""
        while said.count("told to reload: ") < 2:
            said += capfd.readouterr().err
            await trio.sleep(0.02)
        await wait_workers(frontend)

    assert "told 2 workers" in caplog.text
    assert "no upgrade now: several processes serve clients" in caplog.text
    assert frontend.error is None
