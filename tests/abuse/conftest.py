"""One frontend for all tests that leave it as it was, which is what they are about."""

import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from tests.abuse.rig import Books, Engine, Frontend, open_engine, running_frontend


@pytest.fixture(scope="session")
def shared_frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """A running frontend without an engine, with little patience for clients that do not read."""
    flags = (
        *("--http-send-timeout", "1", "--trust-request-chat-template"),
        *("--request-recovery-wait", "0"),
    )
    with running_frontend(tmp_path_factory.mktemp("abuse"), *flags) as frontend:
        yield frontend


@pytest.fixture
async def frontend(shared_frontend: Frontend) -> AsyncGenerator[Frontend]:
    """The shared frontend; whatever a test does to it, it logs no traceback."""
    logged = len(shared_frontend.log_text())
    yield shared_frontend

    assert shared_frontend.process.poll() is None
    assert "Traceback" not in shared_frontend.log_text()[logged:]


@pytest.fixture
async def engine(shared_frontend: Frontend) -> AsyncGenerator[Engine]:
    """An engine that has joined the frontend."""
    async with open_engine(shared_frontend) as engine:
        yield engine


@pytest.fixture
async def base(shared_frontend: Frontend, engine: Engine) -> Books:
    """The frontend's books once it has answered a request."""
    await shared_frontend.check_works()
    engine.heard.clear()
    return await shared_frontend.books()


@pytest.fixture
def socket_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the engine's sockets; its path is short, as those must be."""
    with tempfile.TemporaryDirectory(prefix="vf-") as folder:
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", folder)
        yield Path(folder)
