"""Our own coordinator on real sockets, between a client and the stand-in's ranks."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.engine._helpers import LIMITS, wait_joined, wait_lost
from vllmfront.engine import (
    Deployment,
    EngineClient,
    EngineClientConfig,
    EngineRequest,
    Inheritance,
    RequestStream,
    SamplingParams,
    open_engine_client,
)
from vllmfront.engine.coordinator import (
    Coordinator,
    CoordinatorSubscription,
    NoWaves,
    open_coordinator_listeners,
)
from vllmfront.engine.coordinator._coordinator import PAST_WAVE
from vllmfront.engine.pause import PauseMode
from vllmfront.engine.transport import host_of, open_context, open_subscriber
from vllmfront.engine.transport._ports import listen_lasting
from vllmfront.engine.wire import (
    READY_GATE,
    SUBSCRIBE,
    MessageType,
    Registration,
    ScaleNotice,
    encode_frontend_notice,
)
from vllmfront.errors import VllmFrontError
from vllmfront.simulator import Simulator, SimulatorConfig, open_simulator, serve_simulator

VERSIONS = pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
CONFIG = EngineClientConfig(all_local=True, coordinated=True, engine_count=2, limits=LIMITS)
SECONDS = 10.0


def request(name: str, rank: int | None = None, tokens: int = 20) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=[1, 2, 3],
        data_parallel_rank=rank,
        sampling=SamplingParams(max_tokens=tokens),
    )


def ranks_for(client: EngineClient, version: str, **fields: Any) -> SimulatorConfig:
    assert client.handshake_address is not None
    config = SimulatorConfig(
        handshake=client.handshake_address,
        ranks=2,
        lockstep=True,
        vllm_version=version,
        vocab_size=1000,
        step_time=0.0,
    )
    return attrs.evolve(config, **fields)


@asynccontextmanager
async def open_deployment(
    version: str, config: EngineClientConfig = CONFIG, **fields: Any
) -> AsyncGenerator[tuple[EngineClient, Simulator], None]:
    """Hold a ready client and its ranks; ten seconds for everything."""
    with trio.fail_after(SECONDS):
        async with (
            open_engine_client(config) as client,
            open_simulator(ranks_for(client, version, **fields)) as simulator,
        ):
            await client.wait_ready()
            yield client, simulator


async def run(client: EngineClient, asked: EngineRequest) -> RequestStream:
    async with client.submit(asked) as stream:
        await stream.wait_finished()
    return stream


def coordinator_of(client: EngineClient) -> Coordinator:
    assert isinstance(client.waves, Coordinator)
    return client.waves


async def wait_idle(client: EngineClient) -> None:
    """Return once the present wave, if there is one, has ended."""
    while coordinator_of(client).snapshot().running:  # noqa: ASYNC110 - no event for it
        await trio.sleep(0.005)


@VERSIONS
async def test_requests_to_idle_ranks_run(version: str) -> None:
    async with open_deployment(version) as (client, _):
        for number in range(4):
            stream = await run(client, request(f"r{number}", number % 2))
            assert stream.num_generated_tokens == 20
            await wait_idle(client)

        snapshot = coordinator_of(client).snapshot()
        assert snapshot.wave >= 4
        assert snapshot.gate_open
        assert snapshot.subscribed == 2


@VERSIONS
async def test_requests_at_any_moment_of_a_wave_run(version: str) -> None:
    async with (
        open_deployment(version, sync_interval=2) as (client, _),
        trio.open_nursery() as nursery,
    ):
        for number in range(24):
            nursery.start_soon(run, client, request(f"r{number}", None, 1 + number % 5))
            await trio.sleep(0.001 * (number % 4))


async def test_engines_that_are_not_complete_do_not_begin() -> None:
    with trio.fail_after(SECONDS):
        async with (
            open_engine_client(CONFIG) as client,
            open_simulator(ranks_for(client, "0.33.0", ranks=1)) as first,
        ):
            # It steps together with nobody, so it gets as far as the coordinator's gate.
            while coordinator_of(client).snapshot().subscribed < 1:  # noqa: ASYNC110 - no event
                await trio.sleep(0.005)
            await trio.sleep(0.02)
            assert not first.engines[0].snapshot().ready

            async with open_simulator(ranks_for(client, "0.33.0", ranks=1, start_rank=1)):
                await client.wait_ready()

                assert coordinator_of(client).snapshot().gate_open


@VERSIONS
async def test_requests_run_after_all_ranks_were_replaced(version: str) -> None:
    async with open_deployment(version, rejoin_after=0.0) as (client, simulator):
        for number in range(2):
            await run(client, request(f"a{number}", number))
            for engine in simulator.engines:
                engine.vanish()
            while {rank.incarnation for rank in client.snapshot().ranks} != {number + 2}:  # noqa: ASYNC110 - no event
                await trio.sleep(0.005)
            for rank in range(2):
                await wait_joined(client, rank)

            stream = await run(client, request(f"b{number}", 1))
            assert stream.num_generated_tokens == 20


@VERSIONS
async def test_ranks_die_with_the_one_that_they_step_together_with(version: str) -> None:
    config = attrs.evolve(CONFIG, recovery_wait=0.0, request_retries=0)
    async with open_deployment(version, config) as (client, simulator):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_fail, client, request("r", 0, 10_000))
            await wait_running(client)
            simulator.engines[1].vanish()

        for rank in range(2):
            await wait_lost(client, rank)
        snapshot = coordinator_of(client).snapshot()
        assert not snapshot.running
        assert snapshot.subscribed == 0


async def _fail(client: EngineClient, asked: EngineRequest) -> None:
    with pytest.raises(VllmFrontError):
        await run(client, asked)


async def wait_running(client: EngineClient) -> None:
    while not coordinator_of(client).snapshot().running:  # noqa: ASYNC110 - no event for it
        await trio.sleep(0.005)


@VERSIONS
@pytest.mark.parametrize("mode", list(PauseMode))
async def test_the_first_request_after_a_pause_runs(version: str, mode: PauseMode) -> None:
    async with open_deployment(version) as (client, _):
        await run(client, request("before"))
        held = [client.waves.held]
        async with client.pause(mode):
            held.append(client.waves.held)
        held.append(client.waves.held)

        stream = await run(client, request("after", 1))
        assert stream.num_generated_tokens == 20
        assert held == [False, True, False]


@VERSIONS
async def test_what_was_asked_in_a_pause_that_keeps_requests_runs(version: str) -> None:
    async with (
        open_deployment(version) as (client, _),
        trio.open_nursery() as nursery,
        client.pause(PauseMode.KEEP),
    ):
        nursery.start_soon(run, client, request("queued", 1))
        await trio.testing.wait_all_tasks_blocked()
        assert client.num_in_flight == 1


async def test_requests_that_engines_hold_while_paused_run_when_they_resume() -> None:
    async with open_deployment("0.32.0") as (client, _), trio.open_nursery() as nursery:
        await client.call_utility("pause_scheduler", "keep", False)
        client.waves.hold(held=True)
        nursery.start_soon(run, client, request("queued", 1))
        await trio.sleep(0.05)
        assert client.num_in_flight == 1

        await client.call_utility("resume_scheduler")
        client.waves.hold(held=False)


@VERSIONS
async def test_loads_reach_who_balances(version: str) -> None:
    async with (
        open_deployment(version, step_time=0.01, stats=False) as (client, _),
        trio.open_nursery() as nursery,
    ):
        for number in range(3):
            nursery.start_soon(run, client, request(f"r{number}", 1, 40))
        table = coordinator_of(client)._judgement.table
        while table.loads[1].running < 3:  # noqa: ASYNC110 - no event for it
            await trio.sleep(0.005)

        load = client._membership.ranks[1].load
        assert "reported 3 running" in repr(load)


@VERSIONS
async def test_an_abort_of_the_only_request_keeps_no_call_waiting(version: str) -> None:
    async with open_deployment(version) as (client, _):
        async with client.submit(request("r", 1)):
            pass

        assert await client.call_utility("is_sleeping") == [False, False]


async def test_dense_engines_get_no_coordinator() -> None:
    config = attrs.evolve(CONFIG, coordinated=False)
    async with open_deployment("0.32.0", config, lockstep=False) as (client, _):
        assert isinstance(client.waves, NoWaves)
        registrations = client.info.registrations.values()
        assert {one.dp_stats_address for one in registrations} == {None}
        stream = await run(client, request("r", 1))
        assert stream.num_generated_tokens == 20


async def test_engines_that_need_a_coordinator_and_have_none_are_complained_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = attrs.evolve(CONFIG, coordinated=False)
    async with open_deployment("0.33.0", config):
        assert "Engine 1 steps together with 1 others" in caplog.text
        assert "told of no coordinator" in caplog.text


@VERSIONS
async def test_what_begins_while_nobody_coordinates_goes_on_when_somebody_does(
    version: str,
) -> None:
    async with open_deployment(version) as (client, _), trio.open_nursery() as nursery:
        await run(client, request("a"))
        await wait_idle(client)
        assert client.succession is not None
        await client.succession.step_aside()
        nursery.start_soon(run, client, request("alone", 1))
        await trio.sleep(0.05)
        assert client.num_in_flight == 1

        client.succession.lead()


@VERSIONS
async def test_the_client_of_another_process_takes_the_coordinator_over(version: str) -> None:
    async with open_deployment(version) as (first, _):
        await run(first, request("a", 1))
        assert first.succession is not None
        legacy = await first.succession.step_aside()
        assert first.waves.wave == PAST_WAVE
        entrance = first.succession.entrance
        gift = Inheritance(
            descriptors=[each.duplicate() for each in entrance.listeners], legacy=legacy
        )
        async with open_engine_client(CONFIG, inheritance=gift) as second:
            assert second.succession is not None
            await second.succession.wait_reached(5)
            while coordinator_of(second).snapshot().subscribed < 2:  # noqa: ASYNC110 - no event
                await trio.sleep(0.005)
            for number in range(3):
                stream = await run(second, request(f"b{number}", number % 2))
                assert stream.num_generated_tokens == 20
                # The old one goes on with what it has begun, and may have to begin it anew.
                stream = await run(first, request(f"c{number}", number % 2))
                assert stream.num_generated_tokens == 20


@VERSIONS
async def test_ranks_that_several_programs_run_step_together_and_begin_anew_together(
    version: str,
) -> None:
    config = attrs.evolve(
        CONFIG,
        all_local=False,
        deployment=Deployment(size=2, lockstep=True),
        recovery_wait=SECONDS,
    )
    with trio.fail_after(SECONDS):
        async with open_engine_client(config) as client:
            node = ranks_for(client, version, ranks=1, rejoin_after=0.0)
            async with (
                open_simulator(node) as first,
                open_simulator(attrs.evolve(node, start_rank=1)),
            ):
                await client.wait_ready()
                registrations = client.info.registrations.values()
                assert {one.data_parallel_size for one in registrations} == {2}
                for number in range(4):
                    await run(client, request(f"a{number}", number % 2))
                    await wait_idle(client)

                first.engines[0].vanish()
                while {rank.incarnation for rank in client.snapshot().ranks} != {2}:  # noqa: ASYNC110 - no event
                    await trio.sleep(0.005)
                for rank in range(2):
                    await wait_joined(client, rank)
                for number in range(4):
                    await run(client, request(f"b{number}", number % 2))
                    await wait_idle(client)


@asynccontextmanager
async def open_nodes(version: str) -> AsyncGenerator[tuple[EngineClient, EngineClient]]:
    """Hold the clients of two nodes with a rank each; the first coordinates."""
    config = attrs.evolve(CONFIG, all_local=False, engine_count=1)
    first_config = attrs.evolve(config, deployment=Deployment(size=2, lockstep=True))
    async with open_engine_client(first_config) as first:
        second_config = attrs.evolve(
            config,
            coordinated=False,
            start_rank=1,
            deployment=Deployment(size=2, lockstep=True, first_frontend=first.handshake_address),
        )
        node = ranks_for(first, version, ranks=1, step_time=0.001)
        async with (
            open_engine_client(second_config) as second,
            open_simulator(node),
            open_simulator(attrs.evolve(node, start_rank=1)),
        ):
            await first.wait_ready()
            await second.wait_ready()
            yield first, second


@VERSIONS
async def test_each_node_can_wake_all_ranks(version: str) -> None:
    with trio.fail_after(SECONDS):
        async with open_nodes(version) as (first, second):
            assert isinstance(second.waves, CoordinatorSubscription)
            for number in range(3):
                stream = await run(second, request(f"b{number}", 1, 1 + 9 * number))
                assert stream.num_generated_tokens == 1 + 9 * number
                await wait_idle(first)
                stream = await run(first, request(f"a{number}", 0, 1 + 9 * number))
                assert stream.num_generated_tokens == 1 + 9 * number
                await wait_idle(first)


@VERSIONS
async def test_a_client_that_comes_later_coordinates_the_same_live_ranks(
    version: str, tmp_path: Path
) -> None:
    with listen_lasting("127.0.0.1") as listener:
        port = host_of(listener.address)[1]
    config = attrs.evolve(
        CONFIG, all_local=False, handshake_port=port, state_file=tmp_path / "engines.json"
    )
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            async with open_engine_client(config) as first:
                ranks = ranks_for(first, version, step_time=0.002)
                nursery.start_soon(serve_simulator, ranks)
                await first.wait_ready()
                await run(first, request("a"))
                async with first.submit(request("cut short", 1, 10_000)):
                    await wait_running(first)
            async with open_engine_client(config) as second:
                await second.wait_ready()
                for number in range(4):
                    stream = await run(second, request(f"b{number}", number % 2))
                    assert stream.num_generated_tokens == 20
                    await wait_idle(second)
                assert coordinator_of(second).snapshot().wave > 1
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_a_state_of_engines_that_do_not_step_together_is_of_no_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with listen_lasting("127.0.0.1") as listener:
        port = host_of(listener.address)[1]
    config = attrs.evolve(
        CONFIG, all_local=False, handshake_port=port, state_file=tmp_path / "engines.json"
    )
    async with open_engine_client(attrs.evolve(config, coordinated=False)):
        pass
    async with open_engine_client(config) as client:
        assert client.succession is not None
        assert client.succession.entrance.coordinator_addresses() is not None

    assert "engines that do not step together, which those of this model do" in caplog.text


async def test_what_an_engine_hears_first_is_ready_whatever_is_said_meanwhile() -> None:
    """A real one ends at anything else."""
    registration = Registration(max_model_len=8, vllm_version="0.32.0", data_parallel_size=2)
    coordinator = Coordinator(1)

    async def call_all_the_time() -> None:
        while True:
            coordinator.requested(0)
            await trio.lowlevel.checkpoint()

    with (
        trio.fail_after(SECONDS),
        open_context() as context,
        open_coordinator_listeners("127.0.0.1", local=True) as listeners,
    ):
        async with trio.open_nursery() as nursery:
            await nursery.start(coordinator.serve, context, listeners)
            coordinator.engine_joined(0, registration)
            nursery.start_soon(call_all_the_time)
            for _ in range(10):
                with open_subscriber(context, listeners.wake_ups.address) as engine:
                    engine.send_frames([SUBSCRIBE])
                    said = [(await engine.receive())[0].bytes for _ in range(3)]

                assert said[0] == READY_GATE
                assert MessageType.START_DP_WAVE.value in said
            nursery.cancel_scope.cancel(reason="the test is over")


# Frontends that follow it


@asynccontextmanager
async def open_follower(
    first: EngineClient, *, told: bool
) -> AsyncGenerator[CoordinatorSubscription, None]:
    """Follow the coordinator of *first*, as a frontend of the same engines would."""
    assert first.succession is not None
    addresses = first.succession.entrance.coordinator_addresses()
    assert addresses is not None
    follower = CoordinatorSubscription([0, 1], addresses.stats if told else None)
    async with trio.open_nursery() as nursery:
        context = first.succession._reception._context
        nursery.start_soon(follower.serve, context)  # noqa: ASYNC113 (it is told before)
        for rank, registration in first.info.registrations.items():
            follower.engine_joined(rank, registration)
        yield follower
        nursery.cancel_scope.cancel(reason="the test is over")


@VERSIONS
@pytest.mark.parametrize("told", [True, False], ids=["told", "registered"])
async def test_a_frontend_that_follows_knows_the_wave_and_the_loads(
    version: str, *, told: bool
) -> None:
    async with open_deployment(version, step_time=0.005) as (client, _):
        async with open_follower(client, told=told) as follower:
            loads: list[int] = []
            follower.on_loads(lambda news: loads.append(news[1].running))
            await run(client, request("r", 1, 60))
            await wait_idle(client)
            wave = client.waves.wave
            while follower.wave < wave or not any(loads):  # noqa: ASYNC110 - no event for it
                await trio.sleep(0.005)

        assert follower.wave == wave


async def test_a_frontend_that_follows_wakes_engines_of_old() -> None:
    async with (
        open_deployment("0.32.0") as (client, _),
        open_follower(client, told=True) as follower,
    ):
        await trio.sleep(0.05)
        follower.hold(held=True)
        follower.requested(1)
        await trio.sleep(0.05)
        assert client.waves.wave == 0

        follower.hold(held=False)
        while client.waves.wave < 1:  # noqa: ASYNC110 - no event for it
            await trio.sleep(0.005)


async def test_the_coordinator_heeds_how_many_engines_another_frontend_says_there_are() -> None:
    async with (
        open_deployment("0.33.0") as (client, _),
        open_follower(client, told=True) as follower,
    ):
        await trio.sleep(0.02)
        follower._send([encode_frontend_notice(ScaleNotice(3))])
        while coordinator_of(client).snapshot().engines < 3:  # noqa: ASYNC110 - no event
            await trio.sleep(0.005)


async def test_an_address_that_is_none_is_complained_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_deployment("0.33.0") as (client, _):
        assert client.succession is not None
        follower = CoordinatorSubscription([0], "nonsense")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.serve, client.succession._reception._context)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel(reason="the test is over")

    assert "Cannot connect to the coordinator at nonsense" in caplog.text
