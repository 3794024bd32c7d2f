"""What the conformance tests run against: stand-ins, fakes and real engines alike."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import attrs
import trio

from tests.real_engine._process import MAX_MODEL_LEN, VOCAB_SIZE, EnginePool
from tests.real_engine._puppet import open_puppet
from tests.real_engine._relay import open_relay
from tests.simulator._frontend import RawFrontend, open_raw_frontend
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    GuardLimits,
    open_engine_client,
)
from vllmfront.simulator import SimulatorConfig, open_simulator

TEST_SECONDS = 30.0

FAKE = "fake-"
"""How the names of subjects begin that are a ``FakeEngine``."""

_numbers: Iterator[int] = count()


@attrs.frozen
class Subject:
    """An engine under test, by ``KIND-VERSION``."""

    name: str
    pool: EnginePool | None = None

    @property
    def version(self) -> str:
        return self.name.split("-")[1]

    @property
    def reports_errors(self) -> bool:
        return self.version != "0.32.0"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[RawFrontend, None]:
        """Put a frontend of the test's own before the engine."""
        with trio.fail_after(TEST_SECONDS):
            async with open_raw_frontend() as frontend, self._serving(frontend.handshake.address):
                await frontend.shake_hands()
                yield frontend

    @asynccontextmanager
    async def open_client(self) -> AsyncGenerator[EngineClient, None]:
        """Put the real client before the engine."""
        limits = GuardLimits(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
        with trio.fail_after(TEST_SECONDS):
            async with open_engine_client(EngineClientConfig(limits=limits)) as client:
                assert client.handshake_address is not None
                async with self._serving(client.handshake_address):
                    await client.wait_ready()
                    yield client

    @asynccontextmanager
    async def _serving(self, handshake: str) -> AsyncGenerator[None, None]:
        if self.pool is not None:
            async with open_relay(self.pool.get(self.version), handshake):
                yield
            return
        config = SimulatorConfig(
            handshake=handshake,
            step_time=0.0,
            vocab_size=VOCAB_SIZE,
            max_model_len=MAX_MODEL_LEN,
            max_batch=16,
            vllm_version=self.version,
        )
        async with open_puppet(config) if self.name.startswith(FAKE) else open_simulator(config):
            yield


def fresh_id() -> str:
    """Return an id that no request of this session has had: engines are shared."""
    return f"r{next(_numbers)}"
