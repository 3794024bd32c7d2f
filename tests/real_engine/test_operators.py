"""What operators order of real engines: sleep, caches, calls of workers, adapters, profiles."""

import json
import random
import struct
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.real_engine._process import MAX_MODEL_LEN, VOCAB_SIZE, RealEngine
from tests.real_engine._relay import open_relay
from tests.real_engine._subject import TEST_SECONDS, fresh_id
from vllmfront.control import ControlPlane, ProfilePlan, open_control_plane
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineRequest,
    GuardLimits,
    LoraRequest,
    SamplingParams,
    open_engine_client,
)
from vllmfront.engine.pause import PauseMode
from vllmfront.errors import ControlCallFailed, GenerationHeld, ModelNotFound, UtilityCallFailed

pytestmark = pytest.mark.engine

RANK = 8
HIDDEN, QUERY, VALUE = 64, 64, 32
"""Sizes of the tiny model: its hidden state, and what two projections make of it."""


async def said(client: EngineClient, lora: LoraRequest | None = None) -> list[int]:
    """Return ten tokens of a greedy request."""
    request = EngineRequest(
        request_id=fresh_id(),
        prompt_token_ids=[64, 65, 66],
        sampling=SamplingParams(temperature=0.0, max_tokens=10),
        lora=lora,
    )
    async with client.submit(request) as stream:
        return [token async for output in stream for token in output.new_token_ids]


async def test_engines_sleep_and_wake_up_in_parts(real_engine_client: EngineClient) -> None:
    client = real_engine_client
    with trio.fail_after(TEST_SECONDS):
        async with open_control_plane(client) as plane:
            awake = await said(client)
            for level in (1, 2):
                await plane.sleep(level, PauseMode.ABORT)
                assert await plane.is_sleeping()
                with pytest.raises(GenerationHeld):
                    await said(client)
                assert not await plane.wake_up(["weights"])
                with pytest.raises(GenerationHeld):
                    await said(client)
                assert await plane.wake_up(["kv_cache"])
                assert not await plane.is_sleeping()
                assert await said(client) == awake

            await plane.sleep(0, PauseMode.KEEP)
            assert await plane.wake_up(["scheduling"])
            assert await said(client) == awake


async def test_a_pause_outlasts_a_sleep_inside_it(real_engine_client: EngineClient) -> None:
    client = real_engine_client
    with trio.fail_after(TEST_SECONDS):
        async with open_control_plane(client) as plane:
            await plane.pause(PauseMode.KEEP)
            await plane.sleep(1, PauseMode.KEEP)
            assert await plane.wake_up(None)
            assert await plane.calls.order("test", "is_scheduler_paused") == [True]
            await plane.resume()
            assert await plane.calls.order("test", "is_scheduler_paused") == [False]
            assert len(await said(client)) == 10


async def test_caches_are_reset_and_workers_called(real_engine_client: EngineClient) -> None:
    with trio.fail_after(TEST_SECONDS):
        async with open_control_plane(real_engine_client) as plane:
            assert await plane.calls.order("test", "reset_prefix_cache", False, False) == [True]
            assert await plane.calls.order("test", "reset_mm_cache") == [None]
            assert await plane.calls.order("test", "reset_encoder_cache") == [None]
            assert await plane.calls.order_workers("test", "check_health") == [[None]]
            with pytest.raises(ControlCallFailed, match="'nap' is not implemented"):
                await plane.calls.order_workers("test", "nap")


# Adapters and profiles take an engine that was started for them.


@pytest.fixture(scope="module", params=["0.33.0", pytest.param("0.32.0", marks=pytest.mark.slow)])
def equipped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealEngine]:
    profiler = {
        "profiler": "torch",
        "torch_profiler_dir": str(tmp_path_factory.mktemp("profiles")),
    }
    engine = RealEngine(
        request.param,
        (
            *("--enable-lora", "--max-loras", "1", "--max-lora-rank", str(RANK)),
            *("--profiler-config", json.dumps(profiler)),
        ),
    )
    yield engine
    engine.stop()


@asynccontextmanager
async def open_plane(engine: RealEngine) -> AsyncGenerator[ControlPlane]:
    limits = GuardLimits(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
    config = EngineClientConfig(limits=limits, adapter_seconds=TEST_SECONDS)
    async with open_engine_client(config) as client, open_control_plane(client) as plane:
        assert client.handshake_address is not None
        async with open_relay(engine, client.handshake_address):
            with trio.fail_after(2 * TEST_SECONDS):
                await client.wait_ready()
                yield plane


def adapter(folder: Path, seed: int) -> str:
    """Write an adapter that changes what the tiny model says, and return its path."""
    draw = random.Random(seed)
    header: dict[str, Any] = {}
    data = b""
    for layer in range(2):
        for name, size in (("q_proj", QUERY), ("v_proj", VALUE)):
            for part, shape in (("A", [RANK, HIDDEN]), ("B", [size, RANK])):
                values = [draw.gauss(0, 0.5) for _ in range(shape[0] * shape[1])]
                content = struct.pack(f"<{len(values)}f", *values)
                key = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight"
                header[key] = {
                    "dtype": "F32",
                    "shape": shape,
                    "data_offsets": [len(data), len(data) + len(content)],
                }
                data += content
    head = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


async def test_adapters_come_and_go(equipped: RealEngine, tmp_path: Path) -> None:
    paths = [adapter(tmp_path / name, seed) for seed, name in enumerate("abc")]
    async with open_plane(equipped) as plane:
        client = plane.client
        plain = await said(client)
        first = await client.adapters.load(LoraRequest(name="a", int_id=0, path=paths[0]))
        with_first = await said(client, first)
        assert with_first != plain

        # Only one fits: each use of one evicts the other.
        second = await client.adapters.load(LoraRequest(name="b", int_id=0, path=paths[1]))
        with_second = await said(client, second)
        assert with_second not in (plain, with_first)
        assert await said(client, first) == with_first

        again = LoraRequest(name="a", int_id=0, path=paths[2], load_inplace=True)
        replaced = await client.adapters.load(again)
        assert replaced.int_id == first.int_id
        assert await said(client, replaced) not in (plain, with_first)
        assert await said(client) == plain

        await client.adapters.unload("b")
        with pytest.raises(ModelNotFound):
            await said(client, second)
        await client.adapters.unload("a")
        with pytest.raises(UtilityCallFailed, match="No adapter found"):
            gone = LoraRequest(name="x", int_id=0, path=str(tmp_path / "gone"))
            await client.adapters.load(gone)
        assert await said(client) == plain


async def test_an_id_that_the_engine_knows_from_before_is_loaded_anew(
    equipped: RealEngine, tmp_path: Path
) -> None:
    answers = []
    for seed, name in enumerate("ab"):
        # A client that knows nothing of the one before it gives the same id to another adapter.
        async with open_plane(equipped) as plane:
            path = adapter(tmp_path / name, seed)
            lora = await plane.client.adapters.load(LoraRequest(name=name, int_id=0, path=path))
            assert lora.int_id == 1
            answers.append(await said(plane.client, lora))

    assert answers[0] != answers[1]


async def test_adapters_outlast_a_deep_sleep(equipped: RealEngine, tmp_path: Path) -> None:
    async with open_plane(equipped) as plane:
        path = adapter(tmp_path / "a", 7)
        lora = await plane.client.adapters.load(LoraRequest(name="a", int_id=0, path=path))
        before = await said(plane.client, lora)
        await plane.sleep(2, PauseMode.ABORT)
        assert await plane.wake_up(None)

        assert await said(plane.client, lora) == before


async def test_engines_are_profiled(equipped: RealEngine) -> None:
    async with open_plane(equipped) as plane:
        await plane.profiling.start(ProfilePlan(prefix="tested"))
        await said(plane.client)
        await plane.profiling.stop()
        await plane.profiling.stop()
