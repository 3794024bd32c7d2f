"""Fixtures for all tests: real engines, shared by the whole session."""

import gc
import os
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.real_engine._process import (
    MAX_MODEL_LEN,
    TINY_CHAT,
    VOCAB_SIZE,
    EnginePool,
    RealEngine,
    engine_python,
)
from tests.real_engine._relay import open_relay
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    GuardLimits,
    open_engine_client,
)

VERSIONS = ("0.32.0", "0.33.0")
POOL = pytest.StashKey[EnginePool]()

FIRST = "gw0"
"""The test process that gets the largest group of tests, the one that shares engines."""

# What thousands of tests leave behind takes the collector longer to walk through than many of them.
gc.set_threshold(100_000, 50, 100)

# Frontends keep engines that outlive them there; those of tests are nothing for a user to find.
STATE = tempfile.TemporaryDirectory(prefix="vf-state-")
os.environ["XDG_STATE_HOME"] = STATE.name

settings.register_profile("short", max_examples=50)
settings.load_profile("short")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests with real engines last: by then these have loaded."""
    items.sort(key=_needs_engine)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Keep tests together that use the same engines."""
    from tests.scheduling import EngineScheduling  # only where pytest-xdist is

    return EngineScheduling(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the engines that some test will ask for, unless another process runs those tests."""
    # What was collected stays for the whole session: no collection need walk through it.
    gc.collect()
    gc.freeze()
    pool = session.config.stash.setdefault(POOL, EnginePool())
    if session.config.option.collectonly or os.environ.get("PYTEST_XDIST_WORKER", FIRST) != FIRST:
        return
    for version in VERSIONS:
        if any(_shares_engine(item) and version in item.nodeid for item in session.items):
            try:
                pool.start(version)
            except (pytest.skip.Exception, pytest.fail.Exception):
                return  # told again to each test that needs it


def _needs_engine(item: pytest.Item) -> bool:
    return item.get_closest_marker("engine") is not None


def _shares_engine(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return "engine_pool" in fixtures or ("subject" in fixtures and "real-" in item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the engines, asked for or not."""
    STATE.cleanup()
    pool = session.config.stash.get(POOL, None)
    if pool is not None:
        pool.stop()


@pytest.fixture(scope="session")
def engine_pool(request: pytest.FixtureRequest) -> EnginePool:
    """The real engines, by version."""
    return request.config.stash[POOL]


@pytest.fixture(params=VERSIONS)
def real_engine(request: pytest.FixtureRequest, engine_pool: EnginePool) -> RealEngine:
    """A real engine of each version in turn, with the model ``tiny_chat``; shared by all tests.

    Leave it as it was: unpaused, awake, and alive.
    """
    engine: RealEngine = engine_pool.get(request.param)
    return engine


@pytest.fixture
def tiny_chat() -> Path:
    """The folder of a tiny chat model that knows a few conversations by heart."""
    return TINY_CHAT


@pytest.fixture
def real_engine_python() -> Path:
    """The Python to start an engine of one's own with; skips where there is none."""
    return engine_python()


@pytest.fixture
async def real_engine_client(real_engine: RealEngine) -> AsyncGenerator[EngineClient, None]:
    """A client of a real engine of each version in turn, ready to take requests."""
    limits = GuardLimits(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
    async with open_engine_client(EngineClientConfig(limits=limits)) as client:
        assert client.handshake_address is not None
        async with open_relay(real_engine, client.handshake_address):
            await client.wait_ready()
            yield client
