"""Frontends under a service manager, which owns their sockets, listens to them and signals them."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from tests.lifecycles.rig import (
    BUDGET,
    TINY_CHAT,
    Frontend,
    alive,
    config,
    fake_python,
    serving,
    wait_until,
)
from vllmfront.lifecycles import EngineConfig, ListenConfig
from vllmfront.simulator import SimulatorConfig, serve_simulator

ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What a service manager does before it becomes the service."""


@attrs.define
class Service:
    """A frontend as a process of its own, started as a socket-activated service is."""

    process: trio.Process
    address: tuple[str, int]
    manager: socket.socket
    log: Path
    messages: list[str] = attrs.field(factory=list)

    async def wait_told(self, pattern: str) -> str:
        """Return the first message, of those to come, that matches *pattern*."""
        with trio.fail_after(BUDGET):
            while True:
                try:
                    message = self.manager.recv(4096).decode()
                except BlockingIOError:
                    await trio.sleep(0.01)
                    continue
                self.messages.append(message)
                if re.search(pattern, message):
                    return message

    async def wait_logged(self, pattern: str) -> re.Match[str]:
        await wait_until(lambda: re.search(pattern, self.log.read_text()) is not None)
        found = re.search(pattern, self.log.read_text())
        assert found is not None
        return found

    async def status_of(self, path: str) -> int:
        url = f"http://127.0.0.1:{self.address[1]}{path}"
        async with httpx.AsyncClient() as client:
            return (await client.get(url)).status_code


@asynccontextmanager
async def activated(folder: Path, *words: str, **environ: str) -> AsyncGenerator[Service]:
    """Run ``vllmfront serve`` with a listening socket as descriptor 3."""
    log = folder / "log"
    with (
        trio.fail_after(2 * BUDGET),
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        log.open("wb") as output,
    ):
        manager.bind(str(folder / "notify"))
        manager.setblocking(False)
        command = [sys.executable, "-m", "vllmfront", "serve", str(TINY_CHAT)]
        command += ["--data-parallel-size-local", "0", *words]
        process = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", "-c", ACTIVATE, str(listener.fileno()), *command],
            stdin=subprocess.DEVNULL,
            stderr=output,
            pass_fds=[listener.fileno()],
            env={
                **os.environ,
                "LISTEN_FDS": "1",
                "NOTIFY_SOCKET": str(folder / "notify"),
                **environ,
            },
        )
        try:
            yield Service(process, listener.getsockname(), manager, log)
        finally:
            if process.poll() is None:
                process.kill()
            with trio.move_on_after(BUDGET, shield=True):
                await process.wait()


async def test_a_service_from_its_activation_to_its_end(tmp_path: Path) -> None:
    level = tmp_path / "level"
    async with activated(
        tmp_path, "--log-level-file", str(level), WATCHDOG_USEC="200000"
    ) as service:
        await service.wait_told(r"^EXTEND_TIMEOUT_USEC=\d+\n$")
        await service.wait_told(r"^WATCHDOG=1\n$")
        handshake = (await service.wait_logged(r"engine\(s\) at (tcp\S+)")).group(1)

        assert await service.status_of("/health") == 503
        assert not any("READY=1" in message for message in service.messages)

        async with trio.open_nursery() as nursery:
            engine = SimulatorConfig(handshake=handshake, vocab_size=2048)
            nursery.start_soon(serve_simulator, engine)
            await service.wait_told(r"^READY=1\nSTATUS=ready: the engine serves\n$")

            assert await service.status_of("/health") == 200

            level.write_text("DEBUG")
            service.process.send_signal(signal.SIGHUP)
            await service.wait_told(r"^RELOADING=1\nMONOTONIC_USEC=\d+\n$")
            await service.wait_told(r"^READY=1\n$")
            await service.wait_logged(r"received SIGHUP: the log level is DEBUG; TLS is off")

            service.process.send_signal(signal.SIGTERM)
            await service.wait_told(r"^STOPPING=1\nSTATUS=stopping: received SIGTERM\nEXTEND")
            with trio.fail_after(BUDGET):
                assert await service.process.wait() == 0
            nursery.cancel_scope.cancel()
        with socket.create_connection(service.address):
            pass  # the listener is the service manager's, and outlives us


@pytest.mark.slow
async def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with activated(tmp_path, "--tokenizer", "/does/not/exist") as service:
        with trio.fail_after(BUDGET):
            assert await service.process.wait() == 1
        await service.wait_told(r"^STATUS=failed: .*")


async def test_sockets_that_were_inherited_are_served() -> None:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    settings = config(listen=ListenConfig(fds=[each.fileno() for each in sockets]))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.detach()  # from here on they are the frontend's
    async with serving(settings) as frontend:
        for port in ports:
            response = await frontend.http.get(f"http://127.0.0.1:{port}/version")

            assert response.status_code == 200


async def test_a_hangup_without_tls_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving(config()) as frontend:
        frontend.signal(signal.SIGHUP)
        await wait_until(lambda: "received SIGHUP: " in caplog.text)

        assert (await frontend.http.get("/version")).status_code == 200

    assert frontend.error is None


async def test_clients_are_refused_while_the_engine_takes_its_time_to_end(
    tmp_path: Path,
) -> None:
    """Whoever stays connected to a server that answers no more would wait for it."""
    ids = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {ids}; while :; do sleep 0.05; done"
    settings = config(engine=EngineConfig(python=fake_python(tmp_path, engine=stubborn)))
    async with serving(settings) as frontend:
        await wait_until(ids.exists)
        frontend.signal()
        with trio.fail_after(BUDGET):
            while not await refuses(frontend):  # noqa: ASYNC110 - it tells nobody
                await trio.sleep(0.01)

        assert not frontend.ended.is_set()
        frontend.signal()  # no reason to wait for the engine, which is killed now


async def refuses(frontend: Frontend) -> bool:
    assert frontend.http.base_url.port is not None
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", frontend.http.base_url.port)
    except OSError:
        return True
    await stream.aclose()
    return False


@pytest.mark.slow
async def test_a_service_that_is_replaced_stays_the_same_service(tmp_path: Path) -> None:
    """The manager learns whom to watch and to signal; the end of the old process is no end."""
    async with activated(tmp_path, WATCHDOG_USEC="200000") as service:
        handshake = (await service.wait_logged(r"engine\(s\) at (tcp\S+)")).group(1)
        async with trio.open_nursery() as nursery:
            engine = SimulatorConfig(handshake=handshake, vocab_size=2048)
            nursery.start_soon(serve_simulator, engine)
            await service.wait_told(r"^READY=1")
            service.messages.clear()
            service.process.send_signal(signal.SIGUSR2)
            told = await service.wait_told(r"^MAINPID=\d+\n$")
            successor = int(told.removeprefix("MAINPID="))
            with trio.fail_after(BUDGET):
                assert await service.process.wait() == 0
            await service.wait_told(r"^WATCHDOG=1\n$")

            assert await service.status_of("/health") == 200
            assert not any("STOPPING" in message for message in service.messages)

            os.kill(successor, signal.SIGTERM)
            await service.wait_told(r"^STOPPING=1\n")
            await wait_until(lambda: not alive(successor))
            nursery.cancel_scope.cancel()
