"""How long requests wait for an engine, and who does not wait at all."""

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    assert_idle,
    engine_for,
    open_engines,
    request,
    settle,
    wait_lost,
)
from tests.engine.client._asked import ask, two_that_wait
from vllmfront.engine import (
    FinishReason,
    TerminalCause,
    open_engine_client,
)
from vllmfront.errors import EngineUnavailable, Reason, RequestInterrupted


async def test_without_patience_the_loss_is_told_at_once() -> None:
    config = attrs.evolve(CONFIG, recovery_wait=0)
    async with open_engines(config=config) as (client, [engine]), trio.open_nursery() as nursery:
        asked = ask(nursery, client)
        await engine.receive_add()
        engine.close()
        await wait_lost(client)
        late = ask(nursery, client, "late")
        await settle()

        assert isinstance(asked.error, RequestInterrupted)
        assert [type(error) for error in asked.sink.errors] == [RequestInterrupted]
        assert isinstance(late.error, EngineUnavailable)
        assert late.error.reason is Reason.RECOVERING
        assert late.sink.errors == []
        assert client.metrics.snapshot().causes["refused"] == 1
        assert_idle(client)


async def test_without_patience_an_engine_that_serves_takes_what_another_has_left() -> None:
    config = attrs.evolve(CONFIG, recovery_wait=0)
    async with open_engines(2, config) as (client, engines), trio.open_nursery() as nursery:
        asked = ask(nursery, client)
        await engines[0].receive_add()
        engines[0].close()
        again = await engines[1].receive_add()
        engines[1].send_tokens(again.internal_id, [7], FinishReason.STOP)
        await settle()

        assert asked.error is None
        assert asked.sink.tokens == [7]
        assert_idle(client)


async def test_without_patience_nobody_is_refused_because_others_go_on_first() -> None:
    config = attrs.evolve(CONFIG, recovery_wait=0)
    async with open_engines(2, config) as (client, engines), trio.open_nursery() as nursery:
        first = ask(nursery, client, "first")
        await engines[0].receive_add()
        late = RecordingSink()

        def submit(_rank: object) -> None:
            client.submit(request("late"), [late]).begin()

        client._membership.on_loss(submit)
        engines[0].close()
        adds = [await engines[1].receive_add() for _ in range(2)]
        for add in adds:
            engines[1].send_tokens(add.internal_id, [7], FinishReason.STOP)
        await settle()

        assert [add.request.request_id.split("-")[0] for add in adds] == ["first", "late"]
        assert (first.sink.tokens, late.tokens) == ([7], [7])
        assert_idle(client)


async def test_patience_ends(mock_clock: MockClock) -> None:
    mock_clock.rate = 1.0
    async with open_engines(seconds=100) as (client, [engine]), trio.open_nursery() as nursery:
        lost, new = await two_that_wait(nursery, client, engine)
        mock_clock.jump(29)
        await settle()
        assert client.num_waiting == 2
        mock_clock.jump(2)
        await settle()

        assert isinstance(lost.error, RequestInterrupted)
        assert [type(error) for error in lost.sink.errors] == [RequestInterrupted]
        assert isinstance(new.error, EngineUnavailable)
        assert new.error.reason is Reason.RECOVERING
        assert not new.begun
        assert new.sink.errors == []
        assert lost.cause is new.cause is TerminalCause.RECOVERY_TIMEOUT
        assert client.metrics.snapshot().causes["recovery_timeout"] == 2
        assert_idle(client)


async def test_where_the_restart_takes_longer_than_anybody_waits_new_ones_are_told_at_once(
    mock_clock: MockClock,
) -> None:
    mock_clock.rate = 1.0
    with trio.fail_after(200):
        async with open_engine_client(CONFIG) as client, trio.open_nursery() as nursery:
            with engine_for(client) as engine:
                await engine.say_hello()
                await settle()
                mock_clock.jump(80)
                engine.register()
                engine.say_ready()
                await client.wait_ready()
                lost = ask(nursery, client)
                await engine.receive_add()
            await wait_lost(client)
            new = ask(nursery, client, "new")
            await settle()

            assert lost.cause is None
            assert isinstance(new.error, EngineUnavailable)
            assert new.error.retry_after == pytest.approx(80, abs=1)
            assert new.error.reason is Reason.RECOVERING
            assert client.seconds_until_ready == pytest.approx(80, abs=1)

            with engine_for(client) as engine:
                await engine.say_hello()
                await settle()
                mock_clock.jump(60)
                patient = ask(nursery, client, "patient")
                await settle()
                assert client.num_waiting == 1
                assert isinstance(lost.error, RequestInterrupted)
                engine.register()
                engine.say_ready()
                add = await engine.receive_add()
                engine.send_tokens(add.internal_id, [7], FinishReason.STOP)
                await settle()

            assert patient.sink.tokens == [7]
            assert_idle(client)
