"""Our own coordinator before real engines that step together."""

import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from tests.real_engine._mixture import make_mixture
from tests.real_engine._process import (
    START_SECONDS,
    STOP_SECONDS,
    VOCAB_SIZE,
    engine_command,
    engine_environment,
)
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineRequest,
    GuardLimits,
    SamplingParams,
    open_engine_client,
)
from vllmfront.engine.coordinator import Coordinator
from vllmfront.engine.pause import PauseMode

RANKS = (0, 1)
MORE_ENVIRONMENT = {"0.32.0": {}, "0.33.0": {"VLLM_CPU_SIM_MULTI_NUMA": "1"}}
"""The later release wants a part of the machine for each engine, and has to be told of parts."""

LOAD_SECONDS = 2 * START_SECONDS
"""Two of them at once, beside other work."""

ANSWER_SECONDS = 30.0
"""Much more than any of it takes: what passes this hangs."""


@contextmanager
def engines(version: str, folder: Path, port: int) -> Generator[Path]:
    """Run two engines that step together, for whoever listens at *port*; yields their log."""
    command = engine_command(port, len(RANKS))
    command[command.index("serve") + 1] = str(make_mixture(folder))
    log_file = folder / "engines.log"
    with log_file.open("wb") as log:
        launcher = subprocess.Popen(
            command,
            env={**engine_environment(version), **MORE_ENVIRONMENT[version]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield log_file
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait(STOP_SECONDS)


@asynccontextmanager
async def open_deployment(version: str, folder: Path) -> AsyncGenerator[EngineClient]:
    """Hold a ready client, and its engines."""
    config = EngineClientConfig(
        coordinated=True,
        engine_count=len(RANKS),
        limits=GuardLimits(vocab_size=VOCAB_SIZE, max_model_len=None),
    )
    async with open_engine_client(config) as client:
        assert client.handshake_address is not None
        port = int(client.handshake_address.rpartition(":")[2])
        with engines(version, folder, port) as log_file:
            with trio.move_on_after(LOAD_SECONDS) as scope:
                await client.wait_ready()
            assert not scope.cancelled_caught, log_file.read_text(errors="replace")[-4000:]
            yield client


def request(name: str, rank: int, tokens: int) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=[5, 6, 7],
        data_parallel_rank=rank,
        sampling=SamplingParams(max_tokens=tokens, temperature=0.0),
    )


async def run(client: EngineClient, asked: EngineRequest) -> None:
    with trio.fail_after(ANSWER_SECONDS):
        async with client.submit(asked) as stream:
            await stream.wait_finished()
    assert asked.sampling is not None
    assert stream.num_generated_tokens == asked.sampling.max_tokens


async def wait_idle(client: EngineClient) -> None:
    assert isinstance(client.waves, Coordinator)
    with trio.fail_after(ANSWER_SECONDS):
        while client.waves.snapshot().running:  # noqa: ASYNC110 - no event for it
            await trio.sleep(0.01)


@pytest.mark.engine
@pytest.mark.parametrize("version", ["0.32.0", pytest.param("0.33.0", marks=pytest.mark.slow)])
async def test_no_request_hangs(version: str, tmp_path: Path) -> None:
    async with open_deployment(version, tmp_path) as client:
        for tokens in (1, 2, 20):
            for rank in RANKS:
                await run(client, request(f"idle-{tokens}-{rank}", rank, tokens))
                await wait_idle(client)
        assert client.waves.wave >= 6

        # Requests that meet the end of a wave, before or after it.
        async with trio.open_nursery() as nursery:
            for number in range(24):
                asked = request(f"race-{number}", number % 2, 1 + number % 5)
                nursery.start_soon(run, client, asked)
                await trio.sleep(0.02 * (number % 4))

        # A request that goes as it comes leaves nobody waiting for it.
        for number in range(3):
            await wait_idle(client)
            async with client.submit(request(f"gone-{number}", 1, 20)):
                pass
            assert await client.call_utility("is_sleeping", timeout=ANSWER_SECONDS) == [False] * 2

        for mode in PauseMode:
            async with client.pause(mode):
                pass
            await run(client, request(f"after-{mode}", 1, 5))

        # What an engine was given while it is paused runs when it goes on.
        await wait_idle(client)
        client.waves.hold(held=True)
        await client.call_utility("pause_scheduler", "keep", False, timeout=ANSWER_SECONDS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, client, request("queued", 0, 5))
            await trio.sleep(0.5)
            assert client.num_in_flight == 1
            await client.call_utility("resume_scheduler", timeout=ANSWER_SECONDS)
            client.waves.hold(held=False)

        # What begins while nobody coordinates goes on when somebody does again.
        await wait_idle(client)
        assert client.succession is not None
        await client.succession.step_aside()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, client, request("alone", 1, 20))
            await trio.sleep(0.5)
            client.succession.lead()
