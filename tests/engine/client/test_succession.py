"""Two clients, of two generations, on the same engines at the same time; and the ways back."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.engine._helpers import CONFIG, RecordingSink, assert_idle, rank_state, request, state_of
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineState,
    Inheritance,
    LoraRequest,
    RankState,
    SamplingParams,
    open_engine_client,
)
from vllmfront.engine.client.membership._membership import Membership
from vllmfront.engine.client.reading import _link
from vllmfront.engine.wire import encode_add
from vllmfront.simulator import SimulatorConfig, serve_simulator

STEP = 0.005
LONG = SamplingParams(max_tokens=100)


@asynccontextmanager
async def ready_client() -> AsyncGenerator[EngineClient, None]:
    """Hold a client and its simulated engine; ten seconds for everything."""
    with trio.fail_after(10):
        async with open_engine_client(CONFIG) as client, trio.open_nursery() as nursery:
            start_engine(nursery, client)
            await client.wait_ready()
            yield client
            nursery.cancel_scope.cancel(reason="the test is over")


def start_engine(nursery: trio.Nursery, client: EngineClient, rank: int = 0) -> trio.CancelScope:
    """Start a process of *rank*; cancelling the scope kills it."""
    assert client.handshake_address is not None
    config = SimulatorConfig(
        handshake=client.handshake_address,
        start_rank=rank,
        vocab_size=1000,
        step_time=STEP,
        max_loras=2,
    )
    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await serve_simulator(config)

    nursery.start_soon(run)
    return scope


@asynccontextmanager
async def successor(
    first: EngineClient, config: EngineClientConfig = CONFIG
) -> AsyncGenerator[EngineClient, None]:
    """Let *first* step aside for a client that has what another process would get."""
    gift = await inheritance_of(first)
    async with open_engine_client(config, inheritance=gift) as second:
        assert second.succession is not None
        await second.succession.wait_reached(5)
        yield second


async def start_client(
    nursery: trio.Nursery,
    inheritance: Inheritance | None = None,
    config: EngineClientConfig = CONFIG,
) -> tuple[EngineClient, trio.Event]:
    """Open a client in a task of its own, until the event is set."""
    end = trio.Event()

    async def run(task_status: trio.TaskStatus[EngineClient]) -> None:
        async with open_engine_client(config, inheritance=inheritance) as client:
            task_status.started(client)
            await end.wait()

    client: EngineClient = await nursery.start(run)
    return client, end


async def inheritance_of(client: EngineClient) -> Inheritance:
    """Let *client* step aside, and return what another process would get of it."""
    assert client.succession is not None
    legacy = await client.succession.step_aside()
    descriptors = [listener.duplicate() for listener in client.succession.entrance.listeners]
    return Inheritance(descriptors=descriptors, legacy=legacy)


async def tokens_of(client: EngineClient, params: SamplingParams = LONG) -> int:
    sinks = [RecordingSink() for _ in range(params.n)]
    async with client.submit(request(sampling=params), sinks) as stream:
        await stream.wait_finished()
    assert not any(sink.errors for sink in sinks)
    return sum(len(sink.tokens) for sink in sinks)


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (several clients, no event)
        await trio.sleep(0.005)


def membership(client: EngineClient) -> Membership:
    return client._membership


async def test_streams_of_both_generations_run_at_once() -> None:
    async with ready_client() as first:
        counts: list[int] = []

        async def count(client: EngineClient) -> None:
            counts.append(await tokens_of(client))

        async def count_with_successor() -> None:
            async with successor(first) as second:
                assert state_of(second) is EngineState.READY
                assert second.max_model_len == first.max_model_len
                assert second.handshake_address == first.handshake_address
                assert await second.call_utility("is_sleeping") == [False]
                await count(second)
                assert_idle(second)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count, first)
            await wait_until(lambda: first.num_in_flight == 1)
            nursery.start_soon(count_with_successor)

        assert counts == [100, 100]
        assert_idle(first)


@pytest.mark.parametrize("all_local", [True, False])
async def test_generations_alternate_between_the_slots(all_local: bool) -> None:
    config = attrs.evolve(CONFIG, all_local=all_local, engine_count=2)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            old, end = await start_client(nursery, None, config)
            for rank in config.ranks:
                start_engine(nursery, old, rank)
            await old.wait_ready()
            files = old.socket_files
            for generation in range(1, 4):
                new, end_of_new = await start_client(nursery, await inheritance_of(old), config)
                assert new.succession is not None
                assert new.succession.slot == generation % 2
                await new.succession.wait_reached(5)
                end.set()
                new.succession.lead()
                old, end = new, end_of_new
                assert len(old.info.registrations) == 2
                assert await tokens_of(old, SamplingParams(n=4, max_tokens=5)) == 20

            assert all(map(os.path.exists, files))
            end.set()
            await wait_until(lambda: not any(map(os.path.exists, files)))
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_both_generations_see_an_engine_die() -> None:
    config = attrs.evolve(CONFIG, engine_count=2)
    with trio.fail_after(10):
        async with open_engine_client(config) as first, trio.open_nursery() as nursery:
            start_engine(nursery, first, 0)
            doomed = start_engine(nursery, first, 1)
            await first.wait_ready()
            async with successor(first, config) as second:
                doomed.cancel()
                for client in (first, second):
                    await wait_until(lambda it=client: rank_state(it, 1) is RankState.DEAD)  # type: ignore[misc] # a default

                    assert rank_state(client, 0) is RankState.READY
                    assert await tokens_of(client, SamplingParams(max_tokens=3)) == 3
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_an_engine_that_does_not_connect_in_time_is_lost() -> None:
    config = attrs.evolve(CONFIG, engine_count=2)
    with trio.fail_after(10):
        async with open_engine_client(config) as first, trio.open_nursery() as nursery:
            start_engine(nursery, first, 0)
            doomed = start_engine(nursery, first, 1)
            await first.wait_ready()
            gift = await inheritance_of(first)
            doomed.cancel()
            async with open_engine_client(config, inheritance=gift) as second:
                assert second.succession is not None
                await second.succession.wait_reached(0.5)
                assert state_of(second) is EngineState.READY
                assert second.snapshot().ranks[1].error == "engine 1 did not connect within 0.5 s"
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_a_stranger_that_leaves_is_taken_for_no_engine() -> None:
    config = attrs.evolve(CONFIG, engine_count=2)
    with trio.fail_after(10):
        async with open_engine_client(config) as first, trio.open_nursery() as nursery:
            start_engine(nursery, first, 0)
            start_engine(nursery, first, 1)
            await first.wait_ready()
            gift = await inheritance_of(first)
            assert first.succession is not None
            path = first.succession.entrance.slots[1].inputs.address.removeprefix("ipc://")
            # It is accepted before the engines have reconnected.
            (await trio.open_unix_socket(path)).socket.close()
            async with open_engine_client(config, inheritance=gift) as second:
                assert second.succession is not None
                await second.succession.wait_reached(5)
                (await trio.open_unix_socket(path)).socket.close()
                await trio.sleep(0.2)  # a detour through ZeroMQ's thread, and the grace

                assert [one.state for one in second.snapshot().ranks] == [RankState.READY] * 2
                assert await tokens_of(second, SamplingParams(max_tokens=3)) == 3
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_a_new_engine_joins_both_generations() -> None:
    with trio.fail_after(10):
        async with open_engine_client(CONFIG) as first, trio.open_nursery() as nursery:
            doomed = start_engine(nursery, first)
            await first.wait_ready()
            async with successor(first) as second:
                doomed.cancel()
                for client in (first, second):
                    await wait_until(lambda it=client: state_of(it) is EngineState.RECOVERING)  # type: ignore[misc] # a default
                start_engine(nursery, second)
                for client in (first, second):
                    await wait_until(lambda it=client: state_of(it) is EngineState.READY)  # type: ignore[misc] # a default
                    assert await tokens_of(client, SamplingParams(max_tokens=3)) == 3
                assert membership(second).ranks[0].descriptor is not None
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_who_has_stepped_aside_can_lead_again() -> None:
    with trio.fail_after(10):
        async with open_engine_client(CONFIG) as first, trio.open_nursery() as nursery:
            doomed = start_engine(nursery, first)
            await first.wait_ready()
            assert first.succession is not None
            async with successor(first):
                pass
            first.succession.lead()
            assert await tokens_of(first, SamplingParams(max_tokens=3)) == 3
            doomed.cancel()
            await wait_until(lambda: state_of(first) is EngineState.RECOVERING)
            start_engine(nursery, first)
            await wait_until(lambda: state_of(first) is EngineState.READY)
            async with successor(first) as third:
                assert await tokens_of(third, SamplingParams(max_tokens=3)) == 3
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_what_a_killed_generation_has_begun_is_aborted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            first, end = await start_client(nursery)
            start_engine(nursery, first)
            await first.wait_ready()
            async with successor(first) as second:
                end.set()
                await trio.testing.wait_all_tasks_blocked()
                assert second.succession is not None
                second.succession.lead()
                [rank] = membership(second).ranks.values()
                # As the first one would have, had it not been told to end.
                asked = request(sampling=SamplingParams(max_tokens=900))
                frames = encode_add(asked, internal_id="orphan", client_index=0)
                membership(second).send(rank, frames)
                await wait_until(lambda: "Aborting 1 requests" in caplog.text)
                await wait_until(lambda: second.metrics.snapshot().ranks[0].running == 0)

                assert await tokens_of(second, SamplingParams(max_tokens=3)) == 3
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_no_successor_may_come_while_engines_load() -> None:
    config = attrs.evolve(CONFIG, engine_count=2)
    with trio.fail_after(10):
        async with open_engine_client(config) as client, trio.open_nursery() as nursery:
            assert client.succession is not None
            assert client.succession.obstacle() == "the engines are loading"
            doomed = start_engine(nursery, client, 0)
            start_engine(nursery, client, 1)
            await client.wait_ready()
            assert client.succession.obstacle() is None
            doomed.cancel()
            await wait_until(lambda: rank_state(client, 0) is RankState.DEAD)
            assert client.succession.obstacle() is None
            assert client.succession.legacy().lost == {0: "engine 0 closed its connection"}
            membership(client).engine_arrived(0)
            assert client.succession.obstacle() == "engine 0 is loading"
            nursery.cancel_scope.cancel(reason="the test is over")


async def test_the_next_client_serves_the_adapters_that_the_engines_have() -> None:
    async with ready_client() as first:
        await first.adapters.load(LoraRequest(name="a", int_id=0, path="/a"))
        await first.adapters.load(LoraRequest(name="b", int_id=0, path="/b"))
        await first.adapters.unload("b")
        async with successor(first) as second:
            (lora,) = second.adapters.served
            assert (lora.name, lora.int_id, lora.path) == ("a", 1, "/a")
            async with second.submit(request(lora=lora, sampling=LONG)) as stream:
                await stream.next_output()

            third = await second.adapters.load(LoraRequest(name="c", int_id=0, path="/c"))

            assert third.int_id == 3, "the engine may still hold the one before it"


async def test_engines_on_their_way_to_the_next_generation_are_not_missed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_link, "LEAVE_GRACE", 0.0)  # a stranger's end is looked into at once
    with trio.fail_after(10):
        async with open_engine_client(CONFIG) as first, trio.open_nursery() as nursery:
            start_engine(nursery, first)
            await first.wait_ready()
            gift = await inheritance_of(first)
            assert first.succession is not None
            path = first.succession.entrance.slots[1].inputs.address.removeprefix("ipc://")
            async with open_engine_client(CONFIG, inheritance=gift) as second:
                assert second.succession is not None
                (await trio.open_unix_socket(path)).socket.close()
                await second.succession.wait_reached(5)

                assert "is lost" not in caplog.text
                assert await tokens_of(second, SamplingParams(max_tokens=3)) == 3
            nursery.cancel_scope.cancel(reason="the test is over")
