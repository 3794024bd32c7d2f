"""Frontends that are told to stop, or killed, while they work: what is left afterwards."""

import json
import signal
from pathlib import Path

import attrs
import pytest
import trio

from tests.abuse.rig import (
    COMPLETIONS,
    LONG,
    Client,
    Engine,
    Frontend,
    engine_config,
    engine_process,
    events,
    parse_answer,
    post,
    running_frontend,
    until,
)
from tests.lifecycles.rig import alive, descendants, fake_python
from tests.lifecycles.test_managed import files_in

STREAM = post(COMPLETIONS, {**LONG, "stream": True})
STREAMS = 20


async def begin_streams(frontend: Frontend, nursery: trio.Nursery, request: bytes) -> list[Client]:
    """Begin streams that are read to their end in the background."""
    clients: list[Client] = []

    async def read(*, task_status: trio.TaskStatus[None]) -> None:
        async with frontend.connect() as client:
            clients.append(client)
            await client.send(request)
            await client.read_until(b"data: ")
            task_status.started()
            await client.read_all()

    async with trio.open_nursery() as starting:
        for _ in range(STREAMS):
            starting.start_soon(nursery.start, read)
    return clients


def reasons(clients: list[Client]) -> set[str | None]:
    """Return how the streams ended; each must have said so, and have been finished properly."""
    found = set()
    for client in clients:
        data = events(client.received)
        assert data[-1] == "[DONE]"
        assert client.received.endswith(b"0\r\n\r\n")
        found.add(json.loads(data[-2])["choices"][0]["finish_reason"])
    return found


async def exit_status(frontend: Frontend, seconds: float) -> int:
    """Wait for the frontend's end, which must come in time."""
    with trio.fail_after(seconds):
        await until(lambda: frontend.process.poll() is not None)
    status = frontend.process.returncode
    assert status is not None
    return status


@attrs.frozen
class Stop:
    """How long a frontend may take to stop, and what becomes of streams of so many tokens."""

    timeout: int
    tokens: int
    reason: str
    least: float
    most: float
    """Seconds from the signal to the streams' end, with room for a busy machine."""


@pytest.mark.parametrize(
    "stop",
    [
        Stop(0, 50_000, "abort", 0.0, 5.0),
        pytest.param(Stop(1, 50_000, "abort", 1.0, 6.0), marks=pytest.mark.slow),
        pytest.param(Stop(30, 200, "length", 0.0, 20.0), marks=pytest.mark.slow),
        pytest.param(Stop(2, 50_000, "abort", 2.0, 7.0), marks=pytest.mark.slow),
        pytest.param(Stop(10, 1500, "length", 0.0, 20.0), marks=pytest.mark.slow),
    ],
    ids=lambda stop: f"{stop.timeout}s-{stop.reason}",
)
async def test_running_streams_end_properly_within_the_time_they_are_given(
    tmp_path: Path, stop: Stop
) -> None:
    request = post(COMPLETIONS, {**LONG, "max_tokens": stop.tokens, "stream": True})
    flags = ("--shutdown-timeout", str(stop.timeout))
    with running_frontend(tmp_path, *flags) as frontend:
        engine = Engine(engine_config(frontend))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            await frontend.wait_health(200)
            async with trio.open_nursery() as reading:
                clients = await begin_streams(frontend, reading, request)
                told_at = trio.current_time()
                frontend.process.send_signal(signal.SIGTERM)
                if stop.timeout:
                    await frontend.wait_health(503)
                    refused = await frontend.ask(STREAM)
                    assert refused.status == 503
                    assert refused.headers["connection"] == "close"
            took = trio.current_time() - told_at
            status = await exit_status(frontend, 20)
            nursery.cancel_scope.cancel()

    assert status == 0
    assert reasons(clients) == {stop.reason}
    assert stop.least <= took < stop.most
    ids = sorted(add.internal_id for add in engine.adds)
    assert sorted(engine.aborted) == (ids if stop.reason == "abort" else [])
    assert "Traceback" not in frontend.log_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_wait(tmp_path: Path, number: signal.Signals) -> None:
    with (
        running_frontend(tmp_path, "--shutdown-timeout", "600") as frontend,
        engine_process(frontend),
    ):
        await frontend.wait_health(200)
        async with trio.open_nursery() as reading:
            clients = await begin_streams(frontend, reading, STREAM)
            frontend.process.send_signal(number)
            await frontend.wait_health(503)
            frontend.process.send_signal(number)
        status = await exit_status(frontend, 10)

    assert status == 0
    assert reasons(clients) == {"abort"}


@pytest.mark.slow
async def test_a_stop_waits_for_no_client_that_does_not_read(tmp_path: Path) -> None:
    with running_frontend(tmp_path) as frontend, engine_process(frontend, "--step-ms", "0"):
        await frontend.wait_health(200)
        async with frontend.connect(receive_buffer=4096) as client, frontend.connect():
            await client.send(post(COMPLETIONS, {**LONG, "stream": True, "logprobs": 5}))
            await client.read_until(b"data: ")
            frontend.process.send_signal(signal.SIGTERM)
            status = await exit_status(frontend, 10)

    assert status == 0


SCATTER = (
    "(setsid sleep 600 >/dev/null 2>&1 &) ; (setsid sh -c 'trap \"\" TERM HUP; sleep 600' &) ; "
    "trap '' TERM HUP; sleep 600"
)
"""An engine whose processes have left its session, and do not heed signals."""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
async def test_processes_that_left_the_engines_session_end_as_well(
    tmp_path: Path, socket_folder: Path, number: signal.Signals
) -> None:
    python = fake_python(tmp_path, engine=SCATTER)
    with running_frontend(tmp_path, "--python", python) as frontend:
        await until(lambda: len(descendants(frontend.pid)) >= 5)
        below = descendants(frontend.pid)
        frontend.process.send_signal(number)
        await exit_status(frontend, 15)
        with trio.fail_after(5):
            await until(lambda: not any(map(alive, below)))

    assert files_in(socket_folder) == []


@pytest.mark.slow
async def test_a_kill_at_any_moment_of_the_start_leaves_nothing(
    tmp_path: Path, socket_folder: Path
) -> None:
    """Killed sooner or later, parsing arguments, binding, loading or serving."""
    uds = tmp_path / "socket"
    python = fake_python(tmp_path)
    flags = ("--python", python, "--uds", str(uds))
    for delay in range(0, 3000, 150):
        with running_frontend(tmp_path, *flags, wait=False) as frontend:
            await trio.sleep(delay / 1000)
            below = descendants(frontend.pid)
            frontend.process.kill()
            frontend.process.wait()
            with trio.fail_after(5):
                await until(lambda below=below: not any(map(alive, below)))  # type: ignore[misc]
    with running_frontend(tmp_path, *flags, wait=False) as frontend:
        await until(lambda: "listening on" in frontend.log_text())

    assert not uds.exists()
    assert files_in(socket_folder) == []


@pytest.mark.slow
async def test_a_client_of_a_killed_frontend_is_told_by_its_socket(tmp_path: Path) -> None:
    """And the engine, which is not ours, goes on to serve the next frontend."""
    with running_frontend(tmp_path / "a") as first:
        engine = Engine(engine_config(first))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            await first.wait_health(200)
            async with first.connect() as client:
                await client.send(STREAM)
                await client.read_until(b"data: ")
                first.process.kill()
                received = await client.read_all()
            nursery.cancel_scope.cancel()

    assert not received.endswith(b"0\r\n\r\n")
    assert parse_answer(received.partition(b"\r\n\r\n")[0] + b"\r\n\r\n").status == 200
