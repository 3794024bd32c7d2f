"""One process in a row: when it may be followed, and what it does when it is alone again."""

import json
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.engine._helpers import CONFIG, engine_for
from vllmfront.api.http import (
    HttpConfig,
    HttpRequest,
    ListenConfig,
    ResponseWriter,
    open_listeners,
    serve_http,
)
from vllmfront.control import decode_control, encode_control, open_control_plane
from vllmfront.engine import EngineLegacy, open_engine_client
from vllmfront.engine.pause import PauseEvent, PauseMode
from vllmfront.errors import ConfigurationError, EngineUnavailable
from vllmfront.lifecycles._custody import Custodies
from vllmfront.lifecycles._generation import Generation, end_with_us
from vllmfront.lifecycles._heritage import check_ranks
from vllmfront.lifecycles.upgrade import PidFile
from vllmfront.lifecycles.upgrade._pid_file import read_pid
from vllmfront.supervisor import Notifier, Shutdown


async def answer(request: HttpRequest, response: ResponseWriter) -> None:
    del request
    await trio.lowlevel.checkpoint()
    response.respond(200, b"{}")


@asynccontextmanager
async def open_generation(
    folder: Path, *, names: Sequence[str] = (), notify: str | None = None
) -> AsyncGenerator[Generation]:
    """Serve HTTP, on a Unix socket in *folder*, with one fake engine, for the block."""
    with trio.fail_after(10):
        async with (
            open_listeners(ListenConfig(uds=str(folder / "http"))) as listeners,
            open_engine_client(CONFIG) as client,
            open_control_plane(client) as control,
            trio.open_nursery() as nursery,
        ):
            with engine_for(client) as engine:
                await engine.join()
                await client.wait_ready()
                generation = Generation(
                    client=client,
                    control=control,
                    listeners=listeners,
                    custody=Custodies(names),
                    shutdown=Shutdown(budget=0, margin=0),
                    notifier=Notifier(notify),
                    pid_file=PidFile(folder / "pid"),
                    predecessor=None,
                )
                assert generation.obstacle() == "this process is starting"
                generation.ready.set()
                server = await nursery.start(serve_http, listeners, answer, HttpConfig())
                generation.attach_server(server)
                yield generation
                nursery.cancel_scope.cancel()


def owns_file(generation: Generation) -> bool:
    return generation.listeners[0].unlink is not None


def accepts(generation: Generation) -> bool:
    assert generation.server is not None
    return generation.server.statistics().accepting


async def ask(folder: Path) -> bytes:
    stream = await trio.open_unix_socket(folder / "http")
    async with stream:
        await stream.send_all(b"GET / HTTP/1.0\r\n\r\n")
        return await stream.receive_some()


async def test_everything_is_passed_on_and_taken_back(tmp_path: Path) -> None:
    path = str(tmp_path / "http")
    async with open_generation(tmp_path) as generation:
        assert generation.obstacle() is None
        early = generation.estate()
        late = await generation.step_aside()
        await generation.retire(7)

        assert early == late
        assert [each.unlink[0] for each in late.listeners if each.unlink] == [path]
        assert not owns_file(generation)
        assert generation.socket_files == [path]
        assert len(late.descriptors) == 6
        assert late.engines.legacy.slot == 1
        assert not accepts(generation)

        generation.lead()

        assert owns_file(generation)
        assert accepts(generation)
        assert (await ask(tmp_path)).startswith(b"HTTP/1.0 200")
        pid_file = generation.pid_file
        assert pid_file is not None
        assert read_pid(pid_file.path) is not None
        pid_file.remove()
    assert not (tmp_path / "http").exists()


async def test_a_new_process_that_dies_as_it_takes_over_leaves_no_entry(tmp_path: Path) -> None:
    async with open_generation(tmp_path) as generation:
        own = generation.pid_file
        assert own is not None
        own.write()
        await generation.step_aside()
        PidFile(own.path).write()
        assert own.is_replaced()

        generation.lead()

        assert not own.is_replaced()
        assert read_pid(own.path) == os.getpid()
        own.remove()


async def test_the_service_manager_hears_of_the_new_process_and_then_nothing(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        async with open_generation(tmp_path, notify=str(tmp_path / "notify")) as generation:
            await generation.step_aside()
            await generation.retire(7)
            await generation.notifier.send(STATUS="not heard")
            assert manager.recv(99) == b"MAINPID=7\n"
            generation.lead()
            await generation.announce()
            await generation.notifier.send(STATUS="heard")
            assert f"MAINPID={os.getpid()}\n" in manager.recv(99).decode()
            assert manager.recv(99) == b"STATUS=heard\n"
            assert generation.pid_file is not None
            generation.pid_file.remove()


async def test_a_managed_engine_without_its_process_is_in_the_way(tmp_path: Path) -> None:
    async with open_generation(tmp_path, names=["rank-3"]) as generation:
        assert generation.obstacle() == "an engine's process is not running: rank-3"


async def test_a_pid_file_that_cannot_be_written_does_not_end_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_generation(tmp_path) as generation:
        generation.pid_file = PidFile(tmp_path / "missing" / "pid")
        await generation.step_aside()
        await generation.retire(7)
        generation.lead()

        assert "this process serves again, but is not found" in caplog.text
        assert (await ask(tmp_path)).startswith(b"HTTP/1.0 200")


async def test_clients_that_keep_connections_for_hours_do_not_keep_a_process(
    autojump_clock: MockClock,  # noqa: ARG001 - it is asked for because of its effect
) -> None:
    async with (
        open_listeners(ListenConfig(port=0)) as listeners,
        trio.open_nursery() as nursery,
    ):
        config = HttpConfig(keep_alive_timeout=36_000.0)
        server = await nursery.start(serve_http, listeners, answer, config)
        stream = await trio.open_tcp_stream(*listeners[0].socket.getsockname())
        await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        await stream.receive_some()
        server.retire()
        generation = Generation.__new__(Generation)
        generation.server = server
        began = trio.current_time()
        await generation.wait_idle()

        assert trio.current_time() - began == pytest.approx(60.0, abs=5.0)
        await stream.aclose()
        nursery.cancel_scope.cancel()


def test_where_others_would_end_with_this_process_it_stays() -> None:
    systemd = {"SYSTEMD_EXEC_PID": "7"}

    assert "container" in str(end_with_us(1, {}, notified=True))
    assert "Type=notify-reload" in str(end_with_us(7, systemd, notified=False))
    assert end_with_us(7, systemd, notified=True) is None
    assert end_with_us(8, systemd, notified=False) is None


def test_engines_that_are_not_ours_are_refused() -> None:
    legacy = EngineLegacy(slot=1, registrations={}, lost={0: "", 1: ""})
    check_ranks(legacy, range(2))
    with pytest.raises(ConfigurationError, match=r"engines \[0, 1\], this one is to serve \[0\]"):
        check_ranks(legacy, range(1))


async def test_a_pause_and_what_is_known_of_weights_are_handed_over(tmp_path: Path) -> None:
    async with open_generation(tmp_path) as generation, open_engine_client(CONFIG) as client:
        pauses, plane = generation.client.pauses, generation.control
        window = pauses.open(PauseMode.KEEP, owner="trainer", lease=60)
        assert "generation is pausing" in str(generation.obstacle())
        window.enter(PauseEvent.STANDING)  # the fake engine says nothing
        estate = await generation.step_aside()
        held = (pauses.window, generation.client.gate.closed)
        with pytest.raises(EngineUnavailable, match="taken over"):
            await plane.resume("trainer")
        with pytest.raises(EngineUnavailable, match="taken over"):
            await plane.weights.start()

        fields = json.loads(json.dumps(encode_control(estate.control)))
        async with open_control_plane(client) as heir:
            heir.adopt(decode_control(fields))
            found = client.pauses.window
            assert found is not None
            assert (found.owner, found.phase, client.gate.closed) == ("trainer", "paused", True)
            assert found.lease.seconds == 60
            assert 55 < (found.lease.left(trio.current_time()) or 0) <= 60
            assert heir.weights.legacy() == plane.weights.legacy()

        generation.lead()
        assert (held, generation.client.gate.closed) == ((None, False), True)
        assert pauses.window is window
