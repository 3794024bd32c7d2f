"""Requests that wait for an engine: in which order, and what ends their wait."""

import pytest
import trio

from tests.engine._helpers import (
    RecordingSink,
    assert_idle,
    engine_for,
    open_engines,
    request,
    settle,
    state_of,
    wait_lost,
)
from tests.engine.client._asked import ask, two_that_wait
from vllmfront.engine import (
    EngineState,
    FinishReason,
    TerminalCause,
)
from vllmfront.errors import EngineUnavailable, Reason, RequestInterrupted, StartupFailed


async def test_who_leaves_while_waiting_is_never_sent_and_nobody_is_told() -> None:
    async with open_engines() as (client, [old]):
        old.close()
        await wait_lost(client)
        async with trio.open_nursery() as nursery:
            ask(nursery, client)
            await settle()
            assert client.num_waiting == 1
            nursery.cancel_scope.cancel()
        assert_idle(client)
        assert client.metrics.snapshot().causes["client_gone"] == 1
        with engine_for(client) as new:
            await new.join()
            await client.wait_ready()

            assert await new.hears_nothing_more()


async def test_its_owner_may_know_why_it_leaves_while_waiting() -> None:
    async with open_engines() as (client, [old]):
        old.close()
        await wait_lost(client)
        stream = client.submit(request(), [RecordingSink()])
        stream.why_cancelled = lambda: TerminalCause.SHUTDOWN
        with trio.move_on_after(0.05):
            async with stream:
                pytest.fail("there is no engine")

        assert stream.cause is TerminalCause.SHUTDOWN
        assert client.metrics.snapshot().causes["shutdown"] == 1
        assert_idle(client)


async def test_who_leaves_after_the_second_try_aborts_only_that() -> None:
    async with open_engines() as (client, [old]):
        async with trio.open_nursery() as nursery:
            ask(nursery, client)
            await old.receive_add()
            old.close()
            await wait_lost(client)
            new = engine_for(client)
            await new.join()
            again = await new.receive_add()
            nursery.cancel_scope.cancel()
        with new:
            assert (await new.receive_abort()).request_ids == [again.internal_id]
            assert await new.hears_nothing_more()
        assert_idle(client)


async def test_an_abort_by_an_operator_ends_those_that_wait() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        lost, new = await two_that_wait(nursery, client, old)
        assert client.abort_all() == 2
        await settle()

        for asked in (lost, new):
            assert asked.begun
            assert asked.sink.outputs[-1].finish_reason is FinishReason.ABORT
            assert asked.cause is TerminalCause.ADMIN_ABORTED
        assert_idle(client)


async def test_giving_up_ends_those_that_wait_with_the_reason() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        lost, new = await two_that_wait(nursery, client, old)
        client.give_up(StartupFailed("the engine has failed too often"))
        late = ask(nursery, client, "late")
        await settle()

        assert state_of(client) is EngineState.FAILED
        assert str(client.error) == "the engine has failed too often"
        assert isinstance(lost.error, RequestInterrupted)
        for asked in (new, late):
            assert isinstance(asked.error, EngineUnavailable)
            assert asked.error.reason is Reason.FAILED
            assert "failed too often" in str(asked.error)
        with pytest.raises(StartupFailed, match="too often"):
            await client.wait_ready()
        assert_idle(client)


async def test_nobody_waits_for_an_engine_that_is_being_stopped() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        lost = ask(nursery, client)
        await old.receive_add()
        client.expect_end()
        old.close()
        await wait_lost(client)
        new = ask(nursery, client, "new")
        await settle()

        assert isinstance(lost.error, RequestInterrupted)
        assert isinstance(new.error, EngineUnavailable)
        assert new.error.reason is Reason.DRAINING
        client.expect_engine()
        late = ask(nursery, client, "late")
        await settle()
        assert late.error is None
        nursery.cancel_scope.cancel()
    assert_idle(client)


async def test_one_that_is_pinned_waits_for_its_rank_alone() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        engines[0].close()
        await wait_lost(client, 0)
        pinned = ask(nursery, client, "pinned", data_parallel_rank=0)
        await settle()
        assert client.num_waiting == 1
        free = ask(nursery, client, "free")
        add = await engines[1].receive_add()
        engines[1].send_tokens(add.internal_id, [1], FinishReason.STOP)
        await settle()
        assert free.sink.tokens == [1]
        with engine_for(client, 0) as new:
            await new.join()
            add = await new.receive_add()
            new.send_tokens(add.internal_id, [7], FinishReason.STOP)
            await settle()

        assert pinned.sink.tokens == [7]
        assert await engines[1].hears_nothing_more()
        assert_idle(client)


async def test_very_many_choices_wait_and_are_sent_together() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        old.close()
        await wait_lost(client)
        sinks = [RecordingSink() for _ in range(150)]
        done: list[bool] = []

        async def run() -> None:
            async with await client.prepare_all([request(n=150)], [sinks]) as stream:
                await stream.wait_finished()
            done.append(stream.begun)

        nursery.start_soon(run)
        await settle()
        assert (client.num_waiting, client.snapshot().engine_requests) == (1, 150)
        with engine_for(client) as new:
            await new.join()
            for _ in range(150):
                add = await new.receive_add()
                new.send_tokens(add.internal_id, [7], FinishReason.STOP)
            await settle()

        assert done == [True]
        assert [sink.tokens for sink in sinks] == [[7]] * 150
        assert_idle(client)


async def test_a_start_that_fails_as_the_request_begins_costs_that_request() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        old.close()
        await wait_lost(client)
        failed: list[Exception] = []

        def break_down() -> None:
            raise RuntimeError("a bug in the response")

        async def run() -> None:
            stream = client.submit(request("broken"), [RecordingSink()])
            stream.on_begun = break_down
            try:
                async with stream:
                    await stream.wait_finished()
            except Exception as error:  # noqa: BLE001 (looked at below)
                failed.append(error)

        nursery.start_soon(run)
        await settle()
        whole = ask(nursery, client, "whole")
        await settle()
        with engine_for(client) as new:
            await new.join()
            add = await new.receive_add()
            new.send_tokens(add.internal_id, [7], FinishReason.STOP)
            await settle()

        assert whole.sink.tokens == [7]
        assert "failed as it began" in str(failed[0])
        assert client.metrics.snapshot().causes["internal_error"] == 1
        assert_idle(client)
