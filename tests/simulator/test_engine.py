"""The engine stand-in on real sockets."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgpack
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.simulator._frontend import RANK_0, RawFrontend, open_raw_frontend, request
from vllmfront.engine import FinishReason
from vllmfront.engine.transport import PeerGone
from vllmfront.engine.wire import (
    EngineAddresses,
    EngineDead,
    decode_batch,
    encode_executor_failed,
    encode_init,
)
from vllmfront.simulator import Simulator, SimulatorConfig, open_simulator, serve_simulator

TEST_SECONDS = 5.0


def config_for(frontend: RawFrontend, **fields: object) -> SimulatorConfig:
    defaults = {"step_time": 0.001, "vocab_size": 2048, "max_model_len": 1024}
    return SimulatorConfig(handshake=frontend.handshake.address, **(defaults | fields))  # type: ignore[arg-type]  # keywords of the caller


@asynccontextmanager
async def open_pair(**fields: object) -> AsyncGenerator[tuple[RawFrontend, Simulator], None]:
    """Join a frontend and an engine of those *fields*."""
    with trio.fail_after(TEST_SECONDS):
        async with (
            open_raw_frontend() as frontend,
            open_simulator(config_for(frontend, **fields)) as simulator,
        ):
            await frontend.shake_hands(len(simulator.engines))
            await simulator.wait_ready()
            yield frontend, simulator


async def gone(frontend: RawFrontend) -> None:
    """Return once the engine has left the input socket."""
    while True:
        try:
            frontend.abort("nobody")
        except PeerGone:
            return
        await trio.sleep(0.001)


async def test_ranks_register_under_their_numbers() -> None:
    async with open_pair(ranks=3, start_rank=2) as (frontend, _):
        ranks = sorted(one.data_parallel_rank or 0 for one in frontend.registrations.values())
        frontend.add(request("a"), b"\3\0")
        batch = await frontend.batch()

    assert ranks == [2, 3, 4]
    assert set(frontend.registrations) == {b"\2\0", b"\3\0", b"\4\0"}
    assert batch.engine_index == 3


async def test_the_older_release_registers_with_fewer_keys() -> None:
    with trio.fail_after(TEST_SECONDS):
        async with (
            open_raw_frontend() as frontend,
            open_simulator(config_for(frontend, vllm_version="0.32.0")),
        ):
            addresses = EngineAddresses(
                inputs=[frontend.requests.address], outputs=[frontend.outputs.address]
            )
            identity, _ = [frame.bytes for frame in await frontend.handshake.receive()]
            frontend.handshake.send_nowait(identity, [encode_init(addresses)])
            _, payload = [frame.bytes for frame in await frontend.requests.receive()]

    registration = msgpack.unpackb(payload)
    assert len(registration) == 25
    assert registration["vllm_version"] == "0.32.0"
    assert "coord_store_port" not in registration


@pytest.mark.parametrize(
    "frames",
    [
        [b"\x07", b"\xc0"],
        [b"\x00", b"\xff\xff"],
        [b"\x00", msgpack.packb(["r", [1]])],
        [b"\x03", msgpack.packb([0, 1, "x"])],
        [b"\x01", msgpack.packb({"a": 1})],
        [b"\x00"],
    ],
)
async def test_a_frame_that_does_not_fit_deafens(frames: list[bytes]) -> None:
    async with open_pair() as (frontend, simulator):
        frontend.add(request("a", max_tokens=5))
        frontend.requests.send_nowait(RANK_0, frames)
        await gone(frontend)
        outputs = await frontend.outcome("a")
        snapshot = simulator.engines[0].snapshot()

    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert snapshot.deaf is not None
    assert snapshot.dead is None


async def test_a_value_out_of_range_deafens() -> None:
    async with open_pair() as (frontend, simulator):
        frontend.add(request("a", temperature=-1.0))
        await gone(frontend)

    assert simulator.engines[0].snapshot().deaf == "temperature out of range"


async def test_a_death_is_told_and_then_the_engine_leaves() -> None:
    async with open_pair() as (frontend, simulator):
        frontend.add(request("a", prompt=[5000]))
        found = decode_batch(await frontend.frames())
        await gone(frontend)

    assert isinstance(found, EngineDead)
    assert simulator.engines[0].snapshot().dead == "prompt token beyond the vocabulary"


async def test_what_its_own_executor_would_say_of_a_failure_ends_it() -> None:
    async with open_pair() as (frontend, simulator):
        frontend.requests.send_nowait(RANK_0, encode_executor_failed())
        found = decode_batch(await frontend.frames())
        await gone(frontend)

    assert isinstance(found, EngineDead)
    assert simulator.engines[0].snapshot().dead == "its executor is said to have failed"


async def test_serving_ends_with_the_last_engine() -> None:
    with trio.fail_after(TEST_SECONDS):
        async with open_raw_frontend() as frontend:
            async with trio.open_nursery() as nursery:
                async with trio.open_nursery() as starting:
                    starting.start_soon(frontend.shake_hands)
                    simulator: Simulator = await nursery.start(
                        serve_simulator, config_for(frontend)
                    )
                simulator.engines[0].die()
            found = decode_batch(await frontend.frames())

    assert isinstance(found, EngineDead)


async def test_an_engine_vanishes_without_a_word() -> None:
    async with open_pair(step_time=10.0) as (frontend, simulator):
        frontend.add(request("a"))
        simulator.engines[0].vanish()
        await gone(frontend)

        assert frontend.outputs.receive_nowait() is None


async def test_raw_frames_reach_the_frontend() -> None:
    async with open_pair() as (frontend, simulator):
        simulator.engines[0].send_raw(b"garbage", b"more")

        assert await frontend.frames() == [b"garbage", b"more"]


async def test_a_client_without_sockets_silences_the_engine() -> None:
    with trio.fail_after(TEST_SECONDS):
        async with open_raw_frontend() as frontend, open_simulator(config_for(frontend)):
            await frontend.shake_hands()
            frontend.add(request("a", max_tokens=1), client=7)
            await trio.sleep(0.02)
            frontend.add(request("b", max_tokens=1))
            await trio.sleep(0.02)

            assert frontend.outputs.receive_nowait() is None


async def test_an_engine_with_nothing_to_do_sleeps() -> None:
    async with open_pair(step_time=1000.0) as (frontend, _):
        await wait_all_tasks_blocked()
        frontend.add(request("a"))
        await wait_all_tasks_blocked(0.01)
        frontend.add(request("b"))
        frontend.call("is_sleeping")

        await wait_all_tasks_blocked(0.01)
