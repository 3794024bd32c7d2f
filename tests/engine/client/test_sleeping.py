"""Engines that sleep: what they are told, what is refused meanwhile, and how they come back."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing

from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    assert_idle,
    engine_for,
    open_engines,
    rank_state,
    request,
    settle,
    wait_joined,
    wait_lost,
)
from vllmfront.engine import EngineClient, FinishReason, RankState
from vllmfront.engine.pause import PARTS, PauseMode
from vllmfront.engine.wire import Utility
from vllmfront.errors import (
    ControlCallFailed,
    ControlCallTimeout,
    GenerationHeld,
    Reason,
    StateConflict,
)
from vllmfront.testing import FakeEngine

SECONDS = 5.0
PATIENT = attrs.evolve(CONFIG, recovery_wait=5)
Order = Callable[[], Awaitable[object]]


async def done(order: Order, *engines: FakeEngine, result: object = None) -> list[Utility]:
    """Give an order, which *engines* follow; return what they were told."""
    told = []
    async with trio.open_nursery() as nursery:

        async def give() -> None:
            await order()

        nursery.start_soon(give)
        for engine in engines:
            call = await engine.receive_utility()
            told.append(call)
            engine.answer(call, result)
    return told


def said(calls: list[Utility]) -> list[tuple[str, list[object]]]:
    return [(call.method, call.args) for call in calls]


def asleep(client: EngineClient) -> set[str]:
    return set() if client.sleeping.hold is None else set(client.sleeping.hold.asleep)


async def sleeping(client: EngineClient, *engines: FakeEngine, level: int = 1) -> list[Utility]:
    return await done(
        lambda: client.sleeping.fall_asleep(level, PauseMode.ABORT, seconds=SECONDS), *engines
    )


async def refusal(client: EngineClient) -> GenerationHeld:
    with pytest.raises(GenerationHeld) as caught:
        async with client.submit(request()):
            pass
    return caught.value


async def test_no_request_reaches_an_engine_that_sleeps_until_all_of_it_is_back() -> None:
    async with open_engines() as (client, [engine]):
        assert said(await sleeping(client, engine)) == [("sleep", [1, "abort"])]
        error = await refusal(client)
        assert (error.reason, error.mode) == (Reason.SLEEPING, "abort")
        assert asleep(client) == set(PARTS)

        part = await done(
            lambda: client.sleeping.wake_up(["weights"], seconds=SECONDS), engine, result=False
        )
        assert said(part) == [("wake_up", [["weights"]])]
        assert asleep(client) == {"kv_cache"}
        await refusal(client)
        assert engine.heard_nothing()

        await done(lambda: client.sleeping.wake_up(None, seconds=SECONDS), engine, result=True)
        async with client.submit(request()):
            await engine.receive_add()
        assert client.sleeping.hold is None


async def test_what_was_let_in_before_is_sent_before_the_order() -> None:
    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:
        sink = RecordingSink()

        async def ask() -> None:
            async with client.submit(request(), [sink]) as stream:
                nursery.start_soon(sleep)
                await stream.wait_finished()

        async def sleep() -> None:
            await client.sleeping.fall_asleep(1, PauseMode.ABORT, seconds=SECONDS)

        nursery.start_soon(ask)
        add = await engine.receive_add()
        call = await engine.receive_utility()
        engine.send_tokens(add.internal_id, [], FinishReason.ABORT)
        engine.answer(call)
        await settle()

        assert sink.outputs[-1].finish_reason is FinishReason.ABORT
        assert_idle(client)


async def test_engines_that_wake_up_in_a_pause_stand_still_in_the_same_breath() -> None:
    async with open_engines() as (client, [engine]):
        client.pauses.open(PauseMode.KEEP)
        engine.answer(await engine.receive_utility())
        await sleeping(client, engine)

        async with trio.open_nursery() as nursery:

            async def wake() -> None:
                assert await client.sleeping.wake_up(None, seconds=SECONDS)

            nursery.start_soon(wake)
            calls = [await engine.receive_utility() for _ in range(2)]
            assert said(calls) == [("wake_up", [None]), ("pause_scheduler", ["keep", False])]
            engine.answer(calls[0], result=True)
            engine.answer(calls[1])
            again = await engine.receive_utility()
            assert said([again]) == [("pause_generation", ["keep", True])]
            engine.answer(again)

        assert client.gate.closed
        assert client.sleeping.hold is None
        client.pauses.end()
        resume = await engine.receive_utility()
        engine.answer(resume)
        await settle()
        assert not client.gate.closed


async def test_the_end_of_a_pause_wakes_nobody_up() -> None:
    async with open_engines() as (client, [engine]):
        client.pauses.open(PauseMode.ABORT)
        engine.answer(await engine.receive_utility())
        await sleeping(client, engine)

        client.pauses.end()
        await settle()

        assert engine.heard_nothing()
        assert (await refusal(client)).reason is Reason.SLEEPING


async def test_an_engine_that_starts_anew_goes_to_sleep_before_it_serves() -> None:
    async with open_engines(config=PATIENT) as (client, [old]):
        await sleeping(client, old, level=2)
        await done(lambda: client.sleeping.wake_up(["weights"], seconds=SECONDS), old, result=False)
        old.close()
        await wait_lost(client)
        with engine_for(client) as new:
            await new.join()
            told = []
            for _ in range(2):
                call = await new.receive_utility()
                told.append(call)
                assert rank_state(client) is RankState.PREPARING
                new.answer(call)
            await wait_joined(client)

            assert said(told) == [("sleep", [2, "abort"]), ("wake_up", [["weights"]])]
            await refusal(client)
            await done(lambda: client.sleeping.wake_up(None, seconds=SECONDS), new, result=True)
            async with client.submit(request()):
                await new.receive_add()


async def test_all_stay_awake_where_one_refuses_to_sleep() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        failures = list[ControlCallFailed]()

        async def sleep() -> None:
            with pytest.raises(ControlCallFailed) as caught:
                await client.sleeping.fall_asleep(1, PauseMode.ABORT, seconds=SECONDS)
            failures.append(caught.value)

        nursery.start_soon(sleep)
        calls = [await engine.receive_utility() for engine in engines]
        engines[0].answer(calls[0])
        engines[1].answer(calls[1], failure="no sleep mode")
        for engine in engines:
            call = await engine.receive_utility()
            assert said([call]) == [("wake_up", [None])]
            engine.answer(call, result=True)
        await settle()

        assert failures[0].failures == {1: "no sleep mode"}
        assert not client.gate.closed


async def test_a_sleep_that_takes_too_long_leaves_the_gate_closed() -> None:
    async with open_engines() as (client, [engine]):
        with pytest.raises(ControlCallTimeout, match="POST /wake_up takes it back"):
            await client.sleeping.fall_asleep(1, PauseMode.WAIT, seconds=0.02)
        assert said([await engine.receive_utility()]) == [("sleep", [1, "wait"])]
        await refusal(client)

        await done(lambda: client.sleeping.wake_up(None, seconds=SECONDS), engine, result=True)

        assert not client.gate.closed


async def test_engines_found_asleep_are_held_until_they_are_awake() -> None:
    async with open_engines() as (client, [engine]):
        await done(
            lambda: client.sleeping.wake_up(["weights"], seconds=SECONDS), engine, result=False
        )

        assert asleep(client) == {"kv_cache"}
        await refusal(client)


async def test_caches_are_released_in_a_pause_alone() -> None:
    async with open_engines() as (client, [engine]):
        with pytest.raises(StateConflict, match="the state is running"):
            await client.sleeping.release_kv_cache(seconds=SECONDS)
        window = client.pauses.open(PauseMode.ABORT)
        with pytest.raises(StateConflict, match="the state is pausing"):
            await client.sleeping.release_kv_cache(seconds=SECONDS)
        engine.answer(await engine.receive_utility())
        await window.wait_paused()

        told = await done(lambda: client.sleeping.release_kv_cache(seconds=SECONDS), engine)

        assert said(told) == [("release_kv_cache_memory", [])]
        assert asleep(client) == {"kv_cache"}
        with pytest.raises(StateConflict, match="the state is sleeping"):
            await client.sleeping.release_kv_cache(seconds=SECONDS)


async def test_orders_take_turns_and_do_not_wait_for_ever() -> None:
    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:

        async def sleep() -> None:
            await client.sleeping.fall_asleep(1, PauseMode.ABORT, seconds=SECONDS)

        nursery.start_soon(sleep)
        call = await engine.receive_utility()
        with pytest.raises(ControlCallTimeout, match="wake_up timed out waiting"):
            await client.sleeping.wake_up(None, seconds=0.02)
        assert engine.heard_nothing()
        engine.answer(call)
