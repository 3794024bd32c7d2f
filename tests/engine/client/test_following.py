"""A client that does the handshake, and one of another process that follows it."""

import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.engine._helpers import CONFIG, RecordingSink, rank_state, request, state_of
from vllmfront.engine import (
    EngineClient,
    EngineState,
    RankState,
    SamplingParams,
    open_engine_client,
)
from vllmfront.engine.client.requests._child import Child
from vllmfront.errors import EngineDied, EngineUnavailable, Reason
from vllmfront.simulator import Simulator, SimulatorConfig, serve_simulator

STEP = 0.005


@asynccontextmanager
async def leading_client(workers: int = 2) -> AsyncGenerator[EngineClient, None]:
    """Hold a client for whose engines others may come; ten seconds for everything."""
    with trio.fail_after(10):
        async with open_engine_client(attrs.evolve(CONFIG, workers=workers)) as client:
            yield client


@attrs.define
class Engine:
    """A simulated engine in a scope of its own."""

    simulator: Simulator
    scope: trio.CancelScope


async def start_engine(nursery: trio.Nursery, client: EngineClient) -> Engine:
    assert client.handshake_address is not None
    config = SimulatorConfig(handshake=client.handshake_address, vocab_size=1000, step_time=STEP)
    scope = trio.CancelScope()

    async def run(*, task_status: trio.TaskStatus[Simulator]) -> None:  # noqa: ASYNC128 (passed on)
        with scope:
            await serve_simulator(config, task_status=task_status)

    return Engine(await nursery.start(run), scope)


@asynccontextmanager
async def follower(leader: EngineClient, number: int = 0) -> AsyncGenerator[EngineClient, None]:
    """Open a client as the process of that number would; leaving the block is its end."""
    slots = leader.worker_slots
    assert slots is not None
    inputs, outputs = await slots.lend(number)
    config = attrs.evolve(
        CONFIG,
        input_fd=os.dup(inputs),
        output_fd=os.dup(outputs),
        client_index=slots.index(number),
        follows=True,
    )
    async with open_engine_client(config) as client:
        active = True

        def pass_on() -> None:
            if active:
                client.follow(leader.view())

        leader.on_change(pass_on)
        pass_on()
        try:
            yield client
        finally:
            active = False
    slots.take_back(number)


async def tokens_of(client: EngineClient, count: int) -> int:
    sink = RecordingSink()
    async with client.submit(request(sampling=SamplingParams(max_tokens=count)), [sink]) as stream:
        await stream.wait_finished()
    assert not sink.errors
    return len(sink.tokens)


async def test_requests_of_all_clients_run_at_once_whenever_they_came() -> None:
    async with leading_client() as leader, trio.open_nursery() as nursery:
        async with follower(leader) as early:
            assert state_of(early) is EngineState.LOADING
            await start_engine(nursery, leader)
            await early.wait_ready()
            async with follower(leader, 1) as late:
                await late.wait_ready()
                counts: list[int] = []

                async def count(client: EngineClient) -> None:
                    counts.append(await tokens_of(client, 40))

                async with trio.open_nursery() as requests:
                    for client in (leader, early, late):
                        requests.start_soon(count, client)

                assert counts == [40, 40, 40]
                assert late.max_model_len == leader.max_model_len

        nursery.cancel_scope.cancel()


async def test_what_a_dead_client_left_running_is_aborted_before_the_next_one_comes() -> None:
    async with leading_client() as leader, trio.open_nursery() as nursery:
        engine = await start_engine(nursery, leader)
        await leader.wait_ready()
        async with trio.open_nursery() as dying:
            async with follower(leader) as client:
                await client.wait_ready()
                # The requests of a process that is killed are not aborted by itself.
                client._books.abort = forget  # type: ignore[method-assign]
                start_soon = dying.start_soon  # the request outlives the client
                start_soon(submit_and_forget, client)
                await wait_running(engine, 1)
            await wait_running(engine, 0)
            dying.cancel_scope.cancel()

        async with follower(leader) as client:
            await client.wait_ready()
            assert await tokens_of(client, 3) == 3
        nursery.cancel_scope.cancel()


def forget(children: Iterable[Child]) -> None:
    """Tell no engine."""


async def submit_and_forget(client: EngineClient) -> None:
    with pytest.raises(EngineUnavailable):
        await tokens_of(client, 100_000)


async def wait_running(engine: Engine, count: int) -> None:
    [rank] = engine.simulator.engines
    while rank.snapshot().running != count:  # noqa: ASYNC110 (no event)
        await trio.sleep(STEP)


async def test_a_new_process_of_an_engine_is_joined_and_a_dead_one_is_not_awaited() -> None:
    async with leading_client() as leader, trio.open_nursery() as nursery:
        engine = await start_engine(nursery, leader)
        async with follower(leader) as client:
            await client.wait_ready()
            engine.scope.cancel()
            await client.wait_state(lambda state: state is EngineState.RECOVERING)
            await start_engine(nursery, leader)
            await client.wait_state(lambda state: state is EngineState.READY)

            assert await tokens_of(client, 3) == 3
            assert client.snapshot().ranks[0].incarnation == 2

            leader.report_death("the process was killed")
            leader.give_up(EngineDied("it is not started again"))
            with pytest.raises(EngineUnavailable, match="it is not started again") as caught:
                await tokens_of(client, 3)

        assert caught.value.reason is Reason.FAILED
        assert rank_state(client, 0) is RankState.DEAD
        nursery.cancel_scope.cancel()


async def test_estimates_are_passed_on() -> None:
    async with leading_client() as leader, trio.open_nursery() as nursery:
        engine = await start_engine(nursery, leader)
        async with follower(leader) as client:
            await client.wait_ready()
            engine.scope.cancel()
            await client.wait_state(lambda state: state is EngineState.RECOVERING)
            leader.delay_engine(40.0)

            assert client.seconds_until_ready == pytest.approx(40.0, abs=2.0)

        nursery.cancel_scope.cancel()
