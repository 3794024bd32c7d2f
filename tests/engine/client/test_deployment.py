"""Clients of one deployment: engines are told about all of them, and served by one each."""

import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import pytest
import trio

from tests.engine._helpers import LIMITS, engine_for, request, wait_joined, wait_lost
from vllmfront.engine import (
    Deployment,
    EngineClient,
    EngineClientConfig,
    EngineState,
    RankState,
    SamplingParams,
    open_engine_client,
)
from vllmfront.engine.client.entrance import _introduction
from vllmfront.errors import EngineDied, StartupFailed
from vllmfront.simulator import Simulator, SimulatorConfig, open_simulator
from vllmfront.testing import FakeEngine

FIRST = EngineClientConfig(limits=LIMITS, deployment=Deployment(size=2))


@asynccontextmanager
async def deployment() -> AsyncGenerator[tuple[EngineClient, EngineClient, Simulator]]:
    """Hold two clients, which serve one engine each, for the block."""
    with trio.fail_after(10):
        async with open_engine_client(FIRST) as first:
            assert first.handshake_address is not None
            second_config = attrs.evolve(
                FIRST,
                start_rank=1,
                deployment=Deployment(size=2, first_frontend=first.handshake_address),
            )
            engines = SimulatorConfig(
                handshake=first.handshake_address, ranks=2, vocab_size=1000, step_time=0.001
            )
            async with open_engine_client(second_config) as second, open_simulator(engines) as sim:
                await first.wait_ready()
                await second.wait_ready()
                yield first, second, sim


async def served(client: EngineClient, name: str) -> int:
    """Return how many tokens came for a request of three."""
    sampling = SamplingParams(max_tokens=3)
    async with client.submit(request(name, sampling=sampling)) as stream:
        return sum([len(output.new_token_ids) async for output in stream])


async def test_each_client_serves_its_engine_under_its_own_index() -> None:
    async with deployment() as (first, second, simulator):
        assert await served(first, "a") == 3
        assert await served(second, "b") == 3
        assert set(first.info.registrations) == {0}
        assert set(second.info.registrations) == {1}
        assert second.handshake_address is None
        assert second.succession is None
        assert first.introduced.is_set()
        assert second.introduced.is_set()
        assert [engine.snapshot().dead for engine in simulator.engines] == [None, None]


async def test_the_death_of_an_engine_of_others_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It says its last words to everybody; only its own client takes them for a loss."""
    caplog.set_level(logging.WARNING)
    async with deployment() as (first, second, simulator):
        simulator.engines[1].die()
        await second.wait_state(lambda state: state is EngineState.RECOVERING)
        assert second.rank_state(1)[0] is RankState.DEAD
        assert isinstance(second.rank_state(1)[1], EngineDied)
        assert await served(first, "a") == 3
        assert first.rank_state(0)[0] is RankState.READY

    warnings = [each.getMessage() for each in caplog.records if "client" in each.name]
    assert warnings == ["Engine 1 is lost: engine 1 closed its connection"]


async def test_an_engine_that_is_configured_otherwise_than_those_it_steps_with_is_refused() -> None:
    config = EngineClientConfig(limits=LIMITS, engine_count=2)
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            with engine_for(client, 0) as one, engine_for(client, 1) as other:
                for engine in (one, other):
                    await engine.say_hello()
                    engine.register()
                one.say_ready("a" * 64)
                await wait_joined(client, 0)
                other.say_ready("b" * 64)
                await wait_lost(client, 1)
                _, error = client.rank_state(1)
                state = client.rank_state(0)[0]

    assert isinstance(error, StartupFailed)
    assert "engine 1 is configured otherwise than engine 0" in str(error)
    assert state is RankState.READY


async def test_all_that_step_together_say_the_same() -> None:
    config = EngineClientConfig(limits=LIMITS, engine_count=2)
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            with engine_for(client, 0) as one, engine_for(client, 1) as other:
                for engine in (one, other):
                    await engine.say_hello()
                    engine.register()
                    engine.say_ready("a" * 64)
                await client.wait_ready()
                await wait_joined(client, 1)


@pytest.fixture
def frequent_hellos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_introduction, "_INTERVAL", 0.02)


LOCKSTEP = attrs.evolve(FIRST, coordinated=True, deployment=Deployment(size=2, lockstep=True))


def second_node(first_frontend: str) -> AbstractAsyncContextManager[EngineClient]:
    """Open the client of rank 1, which steps together with rank 0 of the first one."""
    deployment = Deployment(size=2, lockstep=True, first_frontend=first_frontend)
    return open_engine_client(attrs.evolve(FIRST, start_rank=1, deployment=deployment))


async def wait_dead(client: EngineClient, rank: int) -> None:
    """Return once *rank* is known to be dead; it need not be the first that *client* serves."""
    while client.rank_state(rank)[0] is not RankState.DEAD:
        await client.wait_change()


@pytest.mark.usefixtures("frequent_hellos")
@pytest.mark.parametrize("lost", [0, 1])
async def test_an_engine_that_loads_is_given_up_with_one_that_it_steps_together_with(
    lost: int,
) -> None:
    with trio.fail_after(10):
        async with open_engine_client(LOCKSTEP) as first:
            assert first.handshake_address is not None
            async with second_node(first.handshake_address) as second:
                clients = (first, second)
                await second.introduced.wait()
                with engine_for(first, 0) as zero, engine_for(first, 1) as one:
                    for engine in (zero, one):
                        await engine.say_hello()
                    await trio.sleep(0.2)  # ten hellos
                    before = clients[1 - lost].rank_state(1 - lost)[0]
                    clients[lost].expect_engine(lost)
                    clients[lost].report_death("it was killed", lost)
                    await wait_dead(clients[1 - lost], 1 - lost)
                    error = clients[1 - lost].rank_state(1 - lost)[1]

    assert before is RankState.LOADING
    assert "steps together with" in str(error)


@pytest.mark.usefixtures("frequent_hellos")
async def test_an_engine_that_waited_for_a_first_frontend_that_was_away_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    config = attrs.evolve(LOCKSTEP, handshake_port=port)
    with trio.fail_after(10):
        async with second_node(address) as second:
            async with open_engine_client(config) as first:
                await second.introduced.wait()
                with engine_for(first, 0) as zero, engine_for(first, 1) as one:
                    for engine in (zero, one):
                        await engine.say_hello()
                    assert one.addresses is not None
                    one.connect(one.addresses.inputs[1], one.addresses.outputs[1])
                    one.register()
                    one.say_ready()
                    await second.wait_ready()
                    # It served, and so it is not to be spared when its first frontend goes.
                    await trio.sleep(0.2)
            with FakeEngine(address, 1) as fresh:
                await wait_dead(second, 1)
                second.expect_engine(1)
                async with open_engine_client(config):
                    await fresh.say_hello()
                    await trio.sleep(0.2)  # ten hellos
                    state, error = second.rank_state(1)

    assert state is RankState.LOADING, error
