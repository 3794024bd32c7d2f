"""Clients, fake engines and sinks for the tests of the boundary."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import trio

from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineOutput,
    EngineRequest,
    EngineState,
    GuardLimits,
    RankState,
    SamplingParams,
    open_engine_client,
)
from vllmfront.engine.wire import Registration
from vllmfront.errors import VllmFrontError
from vllmfront.testing import REGISTRATION, FakeEngine

LIMITS = GuardLimits(vocab_size=1000, max_model_len=None)
CONFIG = EngineClientConfig(all_local=True, limits=LIMITS)


def request(request_id: str = "r", *, n: int = 1, **fields: Any) -> EngineRequest:
    """Make a small request of *n* choices."""
    fields.setdefault("sampling", SamplingParams(n=n, max_tokens=100))
    return EngineRequest(request_id=request_id, prompt_token_ids=[1, 2, 3], **fields)


class RecordingSink:
    """Keeps what it gets; complete after *stop_after* tokens, or failing after *fail_after*."""

    def __init__(self, *, stop_after: int | None = None, fail_after: int | None = None) -> None:
        self.pushes: list[list[int]] = []
        self.outputs: list[EngineOutput] = []
        self.errors: list[VllmFrontError] = []
        self._stop_after = stop_after
        self._fail_after = fail_after

    @property
    def tokens(self) -> list[int]:
        return [token for push in self.pushes for token in push]

    def on_tokens(self, token_ids: list[int]) -> bool:
        self.pushes.append(token_ids)
        return self._judge()

    def on_output(self, output: EngineOutput) -> bool:
        self.outputs.append(output)
        self.pushes.append(output.new_token_ids)
        return self._judge()

    def on_error(self, error: VllmFrontError) -> None:
        self.errors.append(error)

    def _judge(self) -> bool:
        count = len(self.tokens)
        if self._fail_after is not None and count >= self._fail_after:
            raise RuntimeError("a bug in the pipeline")
        return self._stop_after is not None and count >= self._stop_after


@asynccontextmanager
async def open_engines(
    count: int = 1,
    config: EngineClientConfig = CONFIG,
    *,
    seconds: float = 5,
    registration: Registration = REGISTRATION,
) -> AsyncGenerator[tuple[EngineClient, list[FakeEngine]], None]:
    """Hold a ready client and its fake engines; *seconds* for everything."""
    config = attrs.evolve(config, engine_count=count)
    with trio.fail_after(seconds):
        async with open_engine_client(config) as client, AsyncExitStack() as stack:
            engines = [
                stack.enter_context(engine_for(client, rank, registration)) for rank in config.ranks
            ]
            for engine in engines:
                await engine.join()
            await client.wait_ready()
            yield client, engines


def engine_for(
    client: EngineClient, rank: int = 0, registration: Registration = REGISTRATION
) -> FakeEngine:
    """Start a process of *rank* that has said nothing yet."""
    assert client.handshake_address is not None
    return FakeEngine(client.handshake_address, rank, registration)


async def settle() -> None:
    """Let what was sent arrive and be dealt with: a detour through the kernel takes a moment."""
    await trio.sleep(0.03)
    await trio.testing.wait_all_tasks_blocked()


def assert_idle(client: EngineClient) -> None:
    """Check that the books are empty."""
    snapshot = client.snapshot()
    assert snapshot.requests == snapshot.engine_requests == snapshot.pending_calls == 0
    assert [rank.in_flight for rank in snapshot.ranks] == [0] * len(snapshot.ranks)
    assert client.num_in_flight == client.num_waiting == snapshot.deadlines == 0


@asynccontextmanager
async def replaced(
    client: EngineClient, old: FakeEngine, rank: int = 0
) -> AsyncGenerator[FakeEngine, None]:
    """Kill *old* and hold the process in its place, which has joined."""
    old.close()
    await wait_lost(client, rank)
    with engine_for(client, rank) as new:
        await new.join()
        await wait_joined(client, rank)
        yield new


async def wait_joined(client: EngineClient, rank: int = 0) -> None:
    """Return once *rank* serves."""
    while rank_state(client, rank) is not RankState.READY:  # noqa: ASYNC110 (no event for one)
        await trio.sleep(0.005)


async def wait_lost(client: EngineClient, rank: int = 0) -> None:
    """Return once *rank* is known to be dead."""
    while rank_state(client, rank) is not RankState.DEAD:  # noqa: ASYNC110 (no event for one)
        await trio.sleep(0.005)


def state_of(client: EngineClient) -> EngineState:
    """Return the state now; type checkers believe that a property never changes."""
    return client.state


def rank_state(client: EngineClient, rank: int = 0) -> RankState:
    """Return the state of one rank now."""
    return client.snapshot().ranks[rank].state


def ids(adds: Sequence[Any]) -> list[str]:
    return [add.internal_id for add in adds]
