"""Requests whose engine is lost before it has said anything about them."""

from collections.abc import Callable

import attrs
import pytest
import trio

from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    assert_idle,
    engine_for,
    open_engines,
    rank_state,
    replaced,
    request,
    settle,
    state_of,
    wait_lost,
)
from tests.engine.client._asked import ask
from vllmfront.engine import (
    EngineClient,
    EngineOutput,
    EngineState,
    FinishReason,
    PrefillStats,
    RankState,
    SamplingParams,
    TerminalCause,
)
from vllmfront.errors import RequestInterrupted
from vllmfront.testing import FakeEngine


async def test_an_unanswered_request_is_sent_to_the_process_in_place_of_the_lost_one() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        asked = ask(nursery, client)
        first = await old.receive_add()
        async with replaced(client, old) as new:
            again = await new.receive_add()
            new.send_tokens(first.internal_id, [6])
            new.send_tokens(again.internal_id, [7], FinishReason.STOP)
            await settle()
            assert await new.hears_nothing_more()

        assert again.request == first.request
        assert again.internal_id != first.internal_id
        assert asked.sink.tokens == [7]
        assert asked.sink.errors == []
        assert asked.cause is TerminalCause.STOP
        snapshot = client.metrics.snapshot()
        assert (snapshot.resent_requests, snapshot.continued_requests) == (1, 0)
        assert snapshot.unknown_outputs == 1
        assert_idle(client)


async def test_with_promised_ids_a_second_try_has_one_of_its_own_all_the_same() -> None:
    config = attrs.evolve(CONFIG, randomize_ids=False)
    async with open_engines(2, config) as (client, engines), trio.open_nursery() as nursery:
        asked = ask(nursery, client, "mine")
        assert (await engines[0].receive_add()).internal_id == "mine"
        engines[0].close()
        again = await engines[1].receive_add()
        assert again.internal_id != "mine"
        engines[1].send_tokens(again.internal_id, [7], FinishReason.STOP)
        await settle()

        assert asked.sink.tokens == [7]


async def test_ids_that_are_not_as_unique_as_promised_do_not_meet_in_an_engine() -> None:
    config = attrs.evolve(CONFIG, randomize_ids=False)
    async with open_engines(config=config) as (client, [old]), trio.open_nursery() as nursery:
        old.close()
        await wait_lost(client)
        asked = [ask(nursery, client, "mine"), ask(nursery, client, "mine")]
        await settle()
        with engine_for(client) as new:
            await new.join()
            adds = [await new.receive_add() for _ in range(2)]
            for token, add in enumerate(adds):
                new.send_tokens(add.internal_id, [token], FinishReason.STOP)
            await settle()

        assert adds[0].internal_id != adds[1].internal_id
        assert sorted(one.sink.tokens for one in asked) == [[0], [1]]
        assert_idle(client)


async def test_another_rank_takes_it_at_once_while_streams_there_go_on() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        moved, stays = ask(nursery, client, "a"), ask(nursery, client, "b")
        await settle()
        adds = [await engine.receive_add() for engine in engines]
        if adds[0].request.request_id == "b":
            moved, stays = stays, moved
        engines[1].send_tokens(adds[1].internal_id, [1])
        await settle()
        engines[0].close()
        again = await engines[1].receive_add()
        assert state_of(client) is EngineState.READY
        engines[1].send_tokens(adds[1].internal_id, [2], FinishReason.STOP)
        engines[1].send_tokens(again.internal_id, [7], FinishReason.STOP)
        await settle()

        assert moved.sink.tokens == [7]
        assert stays.sink.tokens == [1, 2]
        assert_idle(client)


async def test_what_was_lost_comes_before_what_came_later_and_all_in_order() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        lost = []
        for number in range(3):
            lost.append(ask(nursery, client, f"lost{number}"))
            await settle()
        old.close()
        await wait_lost(client)
        late = []
        for number in range(3):
            late.append(ask(nursery, client, f"late{number}"))
            await settle()
        assert client.num_waiting == client.num_in_flight == 6
        assert [one.begun for one in lost + late] == [True] * 3 + [False] * 3
        with engine_for(client) as new:
            await new.join()
            adds = [await new.receive_add() for _ in range(6)]
            assert [one.begun for one in late] == [True] * 3
            for add in adds:
                new.send_tokens(add.internal_id, [7], FinishReason.STOP)
            await settle()

        names = [add.request.request_id for add in adds]
        assert names == ["lost0", "lost1", "lost2", "late0", "late1", "late2"]
        assert client.num_waiting == 0
        assert client.metrics.snapshot().resent_requests == 3
        assert_idle(client)


async def test_a_request_is_sent_again_so_often_and_no_more() -> None:
    config = attrs.evolve(CONFIG, request_retries=2)
    async with open_engines(config=config) as (client, [engine]), trio.open_nursery() as nursery:
        asked = ask(nursery, client)
        await engine.receive_add()
        async with replaced(client, engine) as second:
            await second.receive_add()
            async with replaced(client, second) as third:
                await third.receive_add()
            await wait_lost(client)
            await settle()

        assert isinstance(asked.error, RequestInterrupted)
        assert "sent 3 times" in str(asked.error)
        assert asked.cause is TerminalCause.ENGINE_DIED
        assert client.metrics.snapshot().resent_requests == 2
        assert_idle(client)


async def test_a_loss_before_the_send_is_no_try() -> None:
    config = attrs.evolve(CONFIG, request_retries=0)
    async with open_engines(config=config) as (client, [old]), trio.open_nursery() as nursery:
        asked = ask(nursery, client)
        await trio.lowlevel.checkpoint()  # posted, and sent at the end of the turn
        client.report_death("killed")
        async with replaced(client, old) as new:
            add = await new.receive_add()
            new.send_tokens(add.internal_id, [7], FinishReason.STOP)
            await settle()

        assert asked.sink.tokens == [7]
        assert client.metrics.snapshot().resent_requests == 0


async def test_several_choices_that_were_not_answered_are_all_sent_again() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        sinks = [RecordingSink(), RecordingSink()]

        async def run() -> None:
            async with client.submit(request(n=2), sinks) as stream:
                await stream.wait_finished()

        nursery.start_soon(run)
        for _ in range(2):
            await old.receive_add()
        async with replaced(client, old) as new:
            for token in (1, 2):
                add = await new.receive_add()
                new.send_tokens(add.internal_id, [token], FinishReason.STOP)
            await settle()

        assert [sink.tokens for sink in sinks] == [[1], [2]]
        assert_idle(client)


async def test_a_handle_of_another_engines_cache_is_not_used_twice() -> None:
    remote = SamplingParams(extra_args={"kv_transfer_params": {"do_remote_prefill": True}})
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        asked = ask(nursery, client, sampling=remote)
        await engines[0].receive_add()
        engines[0].close()
        await wait_lost(client, 0)
        await settle()

        assert isinstance(asked.error, RequestInterrupted)
        assert "cannot be sent twice" in str(asked.error)
        assert await engines[1].hears_nothing_more()


async def test_an_engine_with_less_room_does_not_get_what_would_kill_it() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        fits = SamplingParams(max_tokens=100)
        long = ask(nursery, client, sampling=fits)
        await old.receive_add()
        old.close()
        await wait_lost(client)
        client.set_limits(attrs.evolve(CONFIG.limits, vocab_size=2))
        with engine_for(client) as new:
            await new.join()
            await client.wait_ready()
            await settle()

            assert isinstance(long.error, RequestInterrupted)
            assert "cannot take it" in str(long.error)
            assert await new.hears_nothing_more()
        assert_idle(client)


async def test_the_first_output_after_a_second_try_is_told_in_full() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        asked = ask(nursery, client)
        await old.receive_add()
        async with replaced(client, old) as new:
            again = await new.receive_add()
            first = EngineOutput(
                new_token_ids=[7],
                prefill_stats=PrefillStats(num_prompt_tokens=3, num_cached_tokens=2),
                finish_reason=FinishReason.STOP,
            )
            new.send_output(again.internal_id, first)
            await settle()

        assert asked.sink.outputs == [first]


def closes(_client: EngineClient, engine: FakeEngine) -> None:
    engine.close()


def reports(_client: EngineClient, engine: FakeEngine) -> None:
    engine.report_death()


def process_ended(client: EngineClient, _engine: FakeEngine) -> None:
    client.report_death("the engine process was killed by SIGKILL", 0)


@pytest.mark.parametrize("die", [closes, reports, process_ended])
async def test_whatever_tells_of_the_loss_requests_survive_it(
    die: Callable[[EngineClient, FakeEngine], None],
) -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        asked = ask(nursery, client)
        await old.receive_add()
        die(client, old)
        async with replaced(client, old) as new:
            add = await new.receive_add()
            new.send_tokens(add.internal_id, [7], FinishReason.STOP)
            await settle()

        assert asked.sink.tokens == [7]
        assert rank_state(client) is RankState.READY
        assert_idle(client)
