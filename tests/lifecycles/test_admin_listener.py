"""A listener for operators: what it serves, and that nothing keeps it from answering."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from tests.lifecycles.rig import TINY_CHAT, Frontend, config, serving, simulated_engine
from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles import ListenConfig, ServerConfig
from vllmfront.lifecycles._admin import open_admin_listeners

KEYS = ServerConfig(
    served_model_names=("tiny",), api_keys=("user-key",), admin_api_keys=("admin-key",)
)
ADMIN = {"authorization": "Bearer admin-key"}
USER = {"authorization": "Bearer user-key"}


def admin_client(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://admin", timeout=20
    )


async def status_of(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> int:
    return (await client.get(path, headers=headers)).status_code


@pytest.fixture(autouse=True)
def _development(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


async def test_operators_and_clients_have_doors_of_their_own(tmp_path: Path) -> None:
    door = tmp_path / "admin.sock"
    settings = config(listen=ListenConfig(port=0, admin=str(door)), server=KEYS)
    async with (
        serving(settings) as frontend,
        admin_client(door) as admin,
        simulated_engine(frontend),
    ):
        for path in ("/supervisor", "/is_paused", "/is_sleeping", "/server_info"):
            assert await status_of(frontend.http, path, ADMIN) == 404
            assert await status_of(admin, path, ADMIN) == 200
            assert await status_of(admin, path, USER) == 401
            assert await status_of(admin, path, {}) == 401
        assert await status_of(frontend.http, "/v1/models", USER) == 200
        assert await status_of(admin, "/v1/models", ADMIN) == 200
        assert await status_of(admin, "/metrics", {}) == 200
        asked = await admin.post("/v1/completions", json={"prompt": "hi"}, headers=ADMIN)
        assert asked.status_code == 404
        paused = await admin.post("/pause", headers=ADMIN)
        assert paused.json() == {"status": "paused"}
        refused = await frontend.http.post("/v1/completions", json={"prompt": "hi"}, headers=USER)
        assert refused.json()["error"]["reason"] == "paused"
    assert not door.exists()


async def test_operators_are_answered_while_the_server_drains(tmp_path: Path) -> None:
    door = tmp_path / "admin.sock"
    server = ServerConfig(served_model_names=("tiny",), shutdown_timeout=20.0)
    settings = config(listen=ListenConfig(port=0, admin=str(door)), server=server)
    async with (
        serving(settings) as frontend,
        simulated_engine(frontend, step_time=0.02),
        trio.open_nursery() as nursery,
        admin_client(door) as admin,
    ):
        nursery.start_soon(_generate, frontend)
        while (await admin.get("/load")).json()["server_load"] == 0:  # noqa: ASYNC110 (no event for it)
            await trio.sleep(0.01)
        frontend.signal()
        while (told := await admin.get("/ready")).json()["state"] != "draining":  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert told.status_code == 503
        await admin.post("/abort_requests", json={})


async def _generate(frontend: Frontend) -> None:
    answer = await frontend.generate(max_tokens=500, ignore_eos=True)
    assert answer.json()["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("address", ["nowhere", "host:", ":8000x", "127.0.0.1:99999"])
async def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="--admin-listen"):
        async with open_admin_listeners(address, ()):
            pass


@attrs.frozen
class Program:
    """A frontend in a process of its own that may open few files."""

    port: int
    admin: int


DESCRIPTORS = 220
CLIENTS = 400
LIMITED = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}));"
    "from vllmfront.cli import main; sys.exit(main())"
)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    ports = [_free_port() for _ in range(3)]
    serve = [
        *(sys.executable, "-c", LIMITED.format(DESCRIPTORS), "serve", str(TINY_CHAT)),
        *("--port", str(ports[0]), "--admin-listen", f"127.0.0.1:{ports[1]}"),
        *("--data-parallel-size-local", "0", "--data-parallel-rpc-port", str(ports[2])),
    ]
    simulate = [
        *(sys.executable, "-m", "vllmfront", "simulate", "--vocab-size", "2048"),
        *("--handshake", f"tcp://127.0.0.1:{ports[2]}", "--step-ms", "20"),
    ]
    with (tmp_path / "log").open("wb") as log:
        running = [subprocess.Popen(one, stdout=log, stderr=log) for one in (serve, simulate)]
    try:
        _wait_ready(ports[1], tmp_path / "log")
        yield Program(ports[0], ports[1])
    finally:
        for one in running:
            one.send_signal(signal.SIGTERM)
        for one in running:
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
    assert "Accepting no HTTP connections" in (tmp_path / "log").read_text()


@pytest.mark.slow
async def test_operators_get_in_when_clients_have_taken_everything(program: Program) -> None:
    url = f"http://127.0.0.1:{program.admin}"
    slowest = 0.0
    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(_hold_a_stream, program.port)
            async with httpx.AsyncClient(base_url=url, timeout=30) as admin:
                await taken_up(admin)
            for _ in range(10):
                before = time.monotonic()
                # A connection of its own each time: operators come when something is wrong.
                async with httpx.AsyncClient(base_url=url, timeout=30) as admin:
                    assert (await admin.get("/is_paused")).json() == {"is_paused": False}
                slowest = max(slowest, time.monotonic() - before)
            async with httpx.AsyncClient(base_url=url, timeout=30) as admin:
                assert (await admin.post("/pause")).json() == {"status": "paused"}
            nursery.cancel_scope.cancel(reason="operators got in")
    assert slowest < 5.0


async def taken_up(admin: httpx.AsyncClient) -> None:
    """Return once clients have so many streams that the rest of them waits."""
    while (await admin.get("/load")).json()["server_load"] < DESCRIPTORS // 3:  # noqa: ASYNC110
        await trio.sleep(0.1)
    await trio.sleep(1)  # nothing tells that the next ones are kept waiting


async def _hold_a_stream(port: int) -> None:
    body = b'{"prompt": "hi", "max_tokens": 1500, "stream": true, "ignore_eos": true}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(head + body)
        async for _ in stream:
            pass


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(port: int, log: Path) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    pytest.fail(f"it did not come up: {log.read_text()[-2000:]}")
