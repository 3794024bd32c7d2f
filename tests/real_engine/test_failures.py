"""How engines fail: each test takes one with it, so real ones are started for it alone."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import msgpack
import pytest
import trio

from tests.real_engine._process import MAX_MODEL_LEN, VOCAB_SIZE, EnginePool
from tests.real_engine._subject import Subject
from tests.real_engine.conftest import SIMULATORS
from tests.simulator._frontend import RANK_0, RawFrontend, request
from vllmfront.engine import EngineRequest, FinishReason
from vllmfront.engine.transport import PeerGone
from vllmfront.engine.wire import EngineDead, decode_batch

REAL = ("real-0.32.0", "real-0.33.0")
PROMPT = (300, 301, 302, 303)
LEAVING_SECONDS = 20.0
POLL_SECONDS = 0.01


@pytest.fixture(
    params=[
        *SIMULATORS,
        *(pytest.param(name, marks=[pytest.mark.engine, pytest.mark.slow]) for name in REAL),
    ]
)
async def frontend(request: pytest.FixtureRequest) -> AsyncGenerator[RawFrontend, None]:
    """A frontend before an engine of its own."""
    name: str = request.param
    pool = EnginePool() if name in REAL else None
    try:
        if pool is not None:
            await trio.to_thread.run_sync(pool.get, name.split("-")[1])
        async with Subject(name, pool).open() as opened:
            yield opened
    finally:
        if pool is not None:
            pool.stop()


@asynccontextmanager
async def engine_leaves(frontend: RawFrontend) -> AsyncGenerator[None, None]:
    """Expect the engine to leave the input socket after the block."""
    yield
    with trio.fail_after(LEAVING_SECONDS):
        while True:
            try:
                frontend.abort("nobody")
            except PeerGone:
                return
            await trio.sleep(POLL_SECONDS)


def ask(prompt: Sequence[int] = PROMPT, **sampling: object) -> EngineRequest:
    return request("r", prompt, **sampling)


@pytest.mark.parametrize(
    "asked",
    [
        [ask(max_tokens=500), ask(max_tokens=500)],
        [ask(())],
        [ask([300] * (MAX_MODEL_LEN + 1))],
        [ask((VOCAB_SIZE + 5000,))],
        [ask(allowed_token_ids=[VOCAB_SIZE])],
        [ask(logit_bias={VOCAB_SIZE: 1.0})],
        [ask(logprobs=VOCAB_SIZE + 1)],
    ],
    ids=["id", "empty", "long", "token", "allowed", "bias", "logprobs"],
)
async def test_a_fatal_request_kills(frontend: RawFrontend, asked: list[EngineRequest]) -> None:
    async with engine_leaves(frontend):
        for one in asked:
            frontend.add(one)
        while not isinstance(decode_batch(await frontend.frames()), EngineDead):
            pass


@pytest.mark.parametrize(
    "frames",
    [
        [b"\x07", b"\xc0"],
        [b"\x00", msgpack.packb([7, [1], None, {}, None, 0.0, None, None, None])],
        [b"\x00", msgpack.packb(["r", [1], None, {"temperature": -1.0}, None, 0.0] + 3 * [None])],
        [b"\x03", msgpack.packb([0, 1, "is_sleeping"])],
    ],
    ids=["type", "id", "temperature", "call"],
)
async def test_a_frame_that_does_not_fit_deafens(
    frontend: RawFrontend, frames: list[bytes]
) -> None:
    async with engine_leaves(frontend):
        frontend.add(request("running", PROMPT, max_tokens=50))
        await frontend.batch()
        frontend.requests.send_nowait(RANK_0, frames)
        outputs = await frontend.outcome("running")

    assert outputs[-1].finish_reason is FinishReason.LENGTH
