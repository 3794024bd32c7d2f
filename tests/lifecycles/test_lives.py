"""A frontend is killed, or stopped, and another one goes on with the same live engines."""

import os
import random
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.lifecycles.lives import Life, Lives, open_lives
from tests.lifecycles.rig import wait_until
from tests.real_engine._process import engine_command, engine_environment
from vllmfront.simulator import SimulatedEngine, Simulator, SimulatorConfig, serve_simulator

LONG = 20_000
"""Tokens of streams that outlast any life."""


@asynccontextmanager
async def engines(lives: Lives, **fields: float) -> AsyncGenerator[Simulator]:
    """Run engines that know nothing of who serves them; they begin within the first life."""
    config = SimulatorConfig(
        handshake=lives.handshake_address,
        vocab_size=2048,
        step_time=0.005,
        **fields,  # type: ignore[arg-type] # numbers
    )
    async with trio.open_nursery() as nursery:
        simulator: Simulator = await nursery.start(serve_simulator, config)
        yield simulator
        nursery.cancel_scope.cancel(reason="the test is over")


def idle(engine: SimulatedEngine) -> bool:
    snapshot = engine.snapshot()
    return snapshot.running == snapshot.waiting == 0 and not snapshot.paused


async def before_it_listens(life: Life, nursery: trio.Nursery) -> None:
    del nursery
    with trio.move_on_after(random.uniform(0.0, 0.6)):
        await life.wait_listening()
    await life.kill()


async def as_it_takes_the_engine_up(life: Life, nursery: trio.Nursery) -> None:
    del nursery
    await life.wait_log("of an earlier frontend to reconnect")
    await trio.sleep(random.uniform(0.0, 0.2))
    await life.kill()


async def with_streams(life: Life, nursery: trio.Nursery) -> None:
    await life.wait_ready()
    await life.begin_streams(nursery, 8, LONG)
    await life.kill()


async def as_it_stops(life: Life, nursery: trio.Nursery) -> None:
    await life.wait_ready()
    await life.begin_streams(nursery, 2, LONG)
    life.process.terminate()
    await trio.sleep(random.uniform(0.0, 0.1))
    await life.kill()


async def stopped_in_peace(life: Life, nursery: trio.Nursery) -> None:
    await life.wait_ready()
    await life.begin_streams(nursery, 2, LONG)
    await life.stop()


ENDS = [
    with_streams,
    before_it_listens,
    as_it_takes_the_engine_up,
    as_it_stops,
    stopped_in_peace,
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "lockstep"), [(1, False), (2, False), (2, True)])
async def test_engines_outlive_twenty_frontends(tmp_path: Path, ranks: int, lockstep: bool) -> None:
    experts = ("--hf-overrides", '{"num_experts": 8}') if lockstep else ()
    lives = open_lives(tmp_path, "--data-parallel-size", str(ranks), *experts)
    with trio.fail_after(240):
        async with (
            lives.next() as first,
            engines(lives, ranks=ranks, lockstep=lockstep) as simulator,
        ):
            await first.wait_ready()
            text = await first.text(40)
            processes = list(simulator.engines)
            await first.kill()
            for number in range(20):
                async with lives.next() as life, trio.open_nursery() as nursery:
                    await ENDS[number % len(ENDS)](life, nursery)
                async with lives.next() as heir, trio.open_nursery() as nursery:
                    await heir.wait_ready()
                    # What earlier ones had begun does not run on.
                    await wait_until(lambda: all(map(idle, simulator.engines)))
                    assert await heir.text(40) == text
                    assert "said HELLO" not in heir.log
                    assert "Traceback" not in heir.log
                    await heir.begin_streams(nursery, 4, LONG)
                    await heir.kill()
            assert list(simulator.engines) == processes


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
async def test_real_engines_outlive_frontends(tmp_path: Path, version: str) -> None:
    lives = open_lives(tmp_path)
    environment = engine_environment(version)
    with trio.fail_after(500), (tmp_path / "engine").open("wb") as log:
        async with lives.next() as first:
            await first.wait_listening()
            engine = await trio.lowlevel.open_process(
                engine_command(lives.port),
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                await first.wait_ready()
                text = await first.text(60)
                for number in range(6):
                    async with lives.next() if number else again(first) as life:
                        await life.wait_ready()
                        async with trio.open_nursery() as nursery:
                            await life.begin_streams(nursery, 6, 900)
                            await (life.kill() if number % 3 else life.stop())
                async with lives.next() as last:
                    await last.wait_ready()
                    metrics = (await last.http.get("/metrics")).text
                    assert await last.text(60) == text
                    assert "said HELLO" not in last.log
                    assert running(metrics) == 0.0
                    await last.stop()
            finally:
                os.killpg(engine.pid, signal.SIGKILL)
                with trio.move_on_after(5, shield=True):
                    await engine.wait()


@asynccontextmanager
async def again(life: Life) -> AsyncGenerator[Life]:
    yield life


def running(metrics: str) -> float:
    """Return how many requests run on all engines, by the exposition *metrics*."""
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    assert lines
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.slow
async def test_an_engine_that_loads_while_its_frontend_is_killed_joins_the_next(
    tmp_path: Path,
) -> None:
    lives = open_lives(tmp_path)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with lives.next() as life:
                await life.wait_listening()
                config = SimulatorConfig(
                    handshake=lives.handshake_address, vocab_size=2048, start_delay=2.0
                )
                nursery.start_soon(serve_simulator, config)
                await life.wait_log("Engine 0 said HELLO and got its addresses")
                await life.kill()
            async with lives.next() as life:
                await life.wait_ready()
                await life.text(3)
                assert "said HELLO" not in life.log
            nursery.cancel_scope.cancel(reason="the test is over")


@pytest.mark.slow
async def test_engines_started_anew_serve_whatever_was_kept(tmp_path: Path) -> None:
    lives = open_lives(tmp_path)
    with trio.fail_after(60):
        async with lives.next() as life, engines(lives):
            await life.wait_ready()
        async with lives.next() as life:
            await life.wait_log("of an earlier frontend to reconnect")
            async with engines(lives):
                await life.wait_ready()
                await life.text(3)
            await life.wait_log("is lost")
        [file] = (tmp_path / "state" / "vllmfront").glob("*.json")
        file.write_bytes(b"{ rubbish")
        async with lives.next() as life, engines(lives):
            await life.wait_ready()
            assert "Starting without" in life.log


@pytest.mark.slow
async def test_a_second_frontend_at_the_same_address_says_who_serves(tmp_path: Path) -> None:
    lives = open_lives(tmp_path)
    with trio.fail_after(60):
        async with lives.next() as first, engines(lives):
            await first.wait_ready()
            async with lives.next() as second:
                assert await second.process.wait() == 1
                assert f"process {first.process.pid} serves the engines of" in second.log
            await first.text(3)
