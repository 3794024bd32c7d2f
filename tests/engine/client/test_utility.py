"""Utility calls: to all engines at once, answered, refused, timed out, cut off."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.engine._helpers import assert_idle, open_engines
from vllmfront.engine import EngineClient
from vllmfront.engine.wire import UtilityAnswer
from vllmfront.errors import (
    EngineDied,
    RequestRejected,
    UtilityCallFailed,
    UtilityCallTimeout,
)


async def test_a_call_goes_to_all_engines_at_once_and_results_keep_their_order() -> None:
    async with open_engines(3) as (client, engines), trio.open_nursery() as nursery:
        results: list[object] = []

        async def call() -> None:
            results.extend(await client.call_utility("add_lora", ["name", 1, "path"]))

        nursery.start_soon(call)
        calls = [await engine.receive_utility() for engine in engines]
        for rank in (2, 0, 1):
            engines[rank].answer(calls[rank], f"from {rank}")
        await wait_all_tasks_blocked(0.02)

        assert results == ["from 0", "from 1", "from 2"]
        assert {(call.method, *call.args[0]) for call in calls} == {("add_lora", "name", 1, "path")}
        assert [call.call_id - calls[0].call_id for call in calls] == [0, 1, 2]
        assert_idle(client)


async def test_a_call_can_name_its_engines() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:

        async def call() -> None:
            assert await client.call_utility("is_sleeping", ranks=[1]) == [True]

        nursery.start_soon(call)
        engines[1].answer(await engines[1].receive_utility(), result=True)
        with pytest.raises(RequestRejected):
            await client.call_utility("is_sleeping", ranks=[2])

    assert client.snapshot().pending_calls == 0


async def test_a_failure_text_is_raised_and_late_answers_are_ignored() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(UtilityCallFailed, match="no such method"):
                await client.call_utility("nonsense")

        nursery.start_soon(call)
        calls = [await engine.receive_utility() for engine in engines]
        engines[0].answer(calls[0], failure="no such method")
        await wait_all_tasks_blocked(0.02)
        engines[1].answer(calls[1], result=1)
        engines[1].send_rows([], utility=UtilityAnswer(-2, None, {"status": "fine"}))
        await wait_all_tasks_blocked(0.02)

        assert_idle(client)


async def test_a_silent_engine_is_named_after_the_timeout() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(UtilityCallTimeout, match=r"engine 1 did not answer sleep within 0"):
                await client.call_utility("sleep", 1, timeout=0.05)

        nursery.start_soon(call)
        calls = [await engine.receive_utility() for engine in engines]
        engines[0].answer(calls[0])
        await trio.sleep(0.1)
        engines[1].answer(calls[1])

        nursery.start_soon(call_again, client)
        for engine in engines:
            engine.answer(await engine.receive_utility(), result=False)


async def call_again(client: EngineClient) -> None:
    assert await client.call_utility("is_sleeping") == [False, False]


async def test_a_cancelled_call_is_forgotten() -> None:
    async with open_engines() as (client, [engine]):
        with trio.move_on_after(0.02):
            await client.call_utility("pause_scheduler", "wait", timeout=None)
        call = await engine.receive_utility()
        engine.answer(call)
        await wait_all_tasks_blocked(0.02)

        assert_idle(client)


async def test_what_cannot_be_sent_is_refused() -> None:
    async with open_engines() as (client, [engine]):
        with pytest.raises(RequestRejected):
            await client.call_utility("collective_rpc", object())

        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_one_dead_engine_fails_a_call_to_all_at_once() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(EngineDied):
                await client.call_utility("is_sleeping", timeout=None)

        nursery.start_soon(call)
        for engine in engines:
            await engine.receive_utility()
        client.report_death("killed", rank=1)
        with pytest.raises(EngineDied, match="killed"):
            await client.call_utility("is_sleeping", ranks=[1])
