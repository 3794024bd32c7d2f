"""External engines whose connection breaks, and that come back as they were."""

import attrs
import trio

from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    assert_idle,
    engine_for,
    open_engines,
    rank_state,
    request,
    settle,
    state_of,
    wait_joined,
    wait_lost,
)
from vllmfront.engine import EngineState, FinishReason, RankState, SamplingParams
from vllmfront.engine.client.reading._reconnection import LOOK_PERIOD
from vllmfront.testing import FakeEngine


async def test_it_serves_again_and_drops_what_it_was_working_on() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        asked = request(sampling=SamplingParams(temperature=0.0, max_tokens=9))
        async with client.submit(asked, [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [10])
            await settle()
            engine.break_inputs()
            await wait_lost(client)
            assert state_of(client) is EngineState.RECOVERING
            engine.send_tokens(add.internal_id, [99])
            await settle()
            engine.mend_inputs()
            await wait_joined(client)
            dropped = await _next_abort_with_ids(engine)
            again = await engine.receive_add()
            engine.send_tokens(again.internal_id, [11], FinishReason.STOP)
            await stream.wait_finished()

        assert dropped == [add.internal_id]
        assert sink.tokens == [10, 11]
        assert again.request.prompt_token_ids == [1, 2, 3, 10]
        assert client.snapshot().ranks[0].incarnation == 1
        assert_idle(client)


async def test_one_that_has_come_back_can_be_lost_again() -> None:
    async with open_engines() as (client, [engine]):
        for _ in range(2):
            engine.break_inputs()
            await wait_lost(client)
            engine.mend_inputs()
            await wait_joined(client)
        engine.close()
        await wait_lost(client)
        with engine_for(client) as new:
            await new.join()
            await client.wait_ready()

            assert client.snapshot().ranks[0].incarnation == 2


async def test_another_ranks_connection_brings_nobody_back() -> None:
    async with open_engines(2) as (client, engines):
        engines[0].break_inputs()
        await wait_lost(client, 0)
        engines[1].break_inputs()
        await wait_lost(client, 1)
        engines[1].mend_inputs()
        await wait_joined(client, 1)
        await trio.sleep(2.5 * LOOK_PERIOD)

        assert rank_state(client, 0) is RankState.DEAD
        engines[0].mend_inputs()
        await wait_joined(client, 0)


async def test_a_process_that_somebody_watches_is_not_taken_back() -> None:
    config = attrs.evolve(CONFIG, watch_loading=False)
    async with open_engines(config=config) as (client, [engine]):
        engine.break_inputs()
        await wait_lost(client)
        engine.mend_inputs()
        await trio.sleep(2.5 * LOOK_PERIOD)

        assert rank_state(client) is RankState.DEAD


async def test_one_that_comes_back_before_its_old_connection_has_ended_serves_on() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        asked = request(sampling=SamplingParams(temperature=0.0, max_tokens=9))
        async with client.submit(asked, [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [10])
            await settle()
            engine.replace_inputs()
            await settle()
            engine.break_old_inputs()
            # What was on the way over the old connection may be lost, so it is begun anew.
            dropped = await _next_abort_with_ids(engine)
            again = await engine.receive_add()
            engine.send_tokens(again.internal_id, [11], FinishReason.STOP)
            await stream.wait_finished()

        assert dropped == [add.internal_id]
        assert sink.tokens == [10, 11]
        assert rank_state(client) is RankState.READY
        engine.close()
        await wait_lost(client)


async def test_whoever_has_taken_an_engines_place_unseen_is_missed_when_it_leaves() -> None:
    async with open_engines(2) as (client, engines):
        stranger = FakeEngine("tcp://127.0.0.1:1", 0)
        with stranger:
            stranger.addresses = engines[0].addresses
            stranger.mend_inputs()
            await settle()
            async with client.submit(request(data_parallel_rank=0)) as stream:
                await stranger.receive_add()
                stranger.close()
                await wait_lost(client, 0)
                assert rank_state(client, 1) is RankState.READY
                assert stream.cause is None


async def _next_abort_with_ids(engine: FakeEngine) -> list[str]:
    """Return the ids of the next abort that names some: empty ones are tries."""
    while True:
        abort = await engine.receive_abort()
        if abort.request_ids:
            return list(abort.request_ids)
