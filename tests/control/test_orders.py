"""Orders to engines that are silent, refuse, or die; what is known of weights then."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.engine._helpers import CONFIG, open_engines, replaced, settle, wait_lost
from vllmfront.control import ControlConfig, ControlPlane, SyncState, open_control_plane
from vllmfront.engine import LoraRequest
from vllmfront.engine.wire import Registration, Utility, decode_lora
from vllmfront.errors import ControlCallFailed, ControlCallTimeout
from vllmfront.testing import REGISTRATION, FakeEngine

UPDATE_ORDERS = ("init_weight_transfer_engine", "start_weight_update", "update_weights")
ADAPTER = LoraRequest(name="a", int_id=1, path="/adapters/a")
WITH_LORA = attrs.evolve(REGISTRATION, supports_lora=True, max_loras=2)
RECOVERING = attrs.evolve(CONFIG, recovery_wait=5)


@asynccontextmanager
async def opened(
    count: int = 1, *, seconds: float = 5.0, registration: Registration = REGISTRATION
) -> AsyncGenerator[tuple[ControlPlane, list[FakeEngine]]]:
    async with (
        open_engines(count, RECOVERING, registration=registration) as (client, engines),
        open_control_plane(client, ControlConfig(timeout=seconds)) as plane,
    ):
        yield plane, engines


async def worker_call(engine: FakeEngine) -> tuple[Utility, str]:
    """Return the next call, and which method of the workers it is for."""
    call = await engine.receive_utility()
    assert call.method == "collective_rpc"
    return call, str(call.args[0])


async def do(engine: FakeEngine, *methods: str) -> None:
    """Answer these calls of workers' methods, which must come."""
    for method in methods:
        call, found = await worker_call(engine)
        assert found == method
        engine.answer(call, [None])


async def test_a_silent_engine_is_named_with_the_phase_and_later_calls_work() -> None:
    async with opened(2, seconds=0.1) as (plane, engines), trio.open_nursery() as nursery:
        nursery.start_soon(do, engines[0], "init_weight_transfer_engine")
        with pytest.raises(ControlCallTimeout, match="engine 1 gave no answer") as caught:
            await plane.weights.init({})
        assert caught.value.phase == "init_weight_transfer_engine"
        assert caught.value.failures == {1: "no answer within 0.1 seconds"}
        assert plane.weights.state is SyncState.FAILED

        await engines[1].receive_utility()  # its late answer would be ignored
        for engine in engines:
            nursery.start_soon(
                do,
                engine,
                "shutdown_weight_transfer_engine",
                "init_weight_transfer_engine",
            )
        await plane.weights.shutdown()
        await plane.weights.init({})
        assert plane.weights.snapshot().state is SyncState.INITIALIZED


async def test_a_call_fails_at_once_when_its_engine_dies() -> None:
    async with opened(2, seconds=60) as (plane, engines), trio.open_nursery() as nursery:

        async def die() -> None:
            await worker_call(engines[1])
            engines[1].close()

        nursery.start_soon(die)
        with trio.fail_after(2), pytest.raises(ControlCallFailed, match="engine 1") as caught:
            await plane.weights.init({})

        assert list(caught.value.failures) == [1]
        assert plane.weights.state is SyncState.FAILED


async def test_an_order_is_done_to_its_end_when_who_asked_is_gone() -> None:
    async with opened() as (plane, [engine]), trio.open_nursery() as nursery:
        asking = trio.CancelScope()

        async def ask() -> None:
            with asking:
                await plane.weights.init({"master": "x"})

        nursery.start_soon(ask)
        call, _ = await worker_call(engine)
        asking.cancel()
        await settle()
        assert plane.weights.state is SyncState.UNINITIALIZED
        engine.answer(call, [None])
        await settle()

        assert plane.weights.snapshot().state is SyncState.INITIALIZED
        assert dict(call.args[3]) == {"init_info": {"master": "x"}}


async def test_orders_wait_for_each_other_and_are_judged_when_it_is_their_turn() -> None:
    async with opened() as (plane, [engine]), trio.open_nursery() as nursery:
        nursery.start_soon(plane.weights.init, {})
        call, _ = await worker_call(engine)
        nursery.start_soon(plane.weights.start)
        await settle()
        assert engine.heard_nothing()
        engine.answer(call, [None])
        await do(engine, "start_weight_update")


async def test_the_wait_for_another_order_has_an_end() -> None:
    async with opened(seconds=0.05) as (plane, _):
        await plane.weights._turn.acquire()
        with pytest.raises(ControlCallTimeout, match="waiting for another order to end"):
            await plane.weights.init({})
        assert plane.weights.state is SyncState.UNINITIALIZED


async def test_a_restarted_engine_has_stale_weights_and_says_so() -> None:
    async with opened() as (plane, [old]), trio.open_nursery() as nursery:
        nursery.start_soon(
            do, old, "init_weight_transfer_engine", "start_weight_update", "finish_weight_update"
        )
        await plane.weights.init({})
        await plane.weights.start()
        await plane.weights.finish()
        async with replaced(plane.client, old) as new:
            snapshot = plane.weights.snapshot()
            assert (snapshot.state, snapshot.stale) == (SyncState.FAILED, (0,))
            assert snapshot.failure is not None
            assert snapshot.failure.phase == "connection"

            async def tell() -> None:
                engine_call = await new.receive_utility()
                assert engine_call.method == "get_weight_version"
                new.answer(engine_call, "default")

            nursery.start_soon(tell)
            version = await plane.weights.version()
            assert (version.label, version.stale) == ("default", (0,))


async def test_what_failed_before_an_update_began_leaves_engines_that_generate_alone() -> None:
    async with opened(2) as (plane, engines), trio.open_nursery() as nursery:

        async def refuse() -> None:
            call, _ = await worker_call(engines[1])
            engines[1].answer(call, failure="no")

        nursery.start_soon(do, engines[0], "init_weight_transfer_engine")
        nursery.start_soon(refuse)
        with pytest.raises(ControlCallFailed):
            await plane.weights.init({})
        # A start would empty layers, and nothing holds generation back.
        for engine in engines:
            nursery.start_soon(do, engine, "shutdown_weight_transfer_engine")
        await plane.weights.shutdown()

        assert plane.weights.state is SyncState.UNINITIALIZED


async def test_weights_that_did_not_get_their_name_are_not_served() -> None:
    async with opened() as (plane, [engine]), trio.open_nursery() as nursery:
        nursery.start_soon(do, engine, *UPDATE_ORDERS)
        await plane.weights.init({})
        await plane.weights.start()
        await plane.weights.update({"a": 1})

        async def refuse() -> None:
            await do(engine, "finish_weight_update")
            engine.answer(await engine.receive_utility(), failure="no")

        nursery.start_soon(refuse)
        with pytest.raises(ControlCallFailed, match="update_weight_version failed on engine 0"):
            await plane.weights.finish("v1")

        assert plane.weights.state is SyncState.FAILED
        assert plane.weights.incomplete == (0,)


async def test_an_engine_that_is_away_during_an_update_has_stale_weights() -> None:
    async with opened(2) as (plane, engines), trio.open_nursery() as nursery:
        engines[1].close()
        await wait_lost(plane.client, 1)
        nursery.start_soon(do, engines[0], *UPDATE_ORDERS, "finish_weight_update")
        await plane.weights.init({})
        await plane.weights.start()
        await plane.weights.update({"a": 1})
        await plane.weights.finish()

        snapshot = plane.weights.snapshot()
        assert (snapshot.stale, snapshot.incomplete) == ((1,), ())


async def test_an_engine_that_is_lost_after_it_has_answered_has_stale_weights() -> None:
    async with opened(2) as (plane, engines), trio.open_nursery() as nursery:
        for engine in engines:
            nursery.start_soon(do, engine, *UPDATE_ORDERS)
        await plane.weights.init({})
        await plane.weights.start()
        await plane.weights.update({"a": 1})
        nursery.start_soon(plane.weights.finish)
        await do(engines[1], "finish_weight_update")
        await settle()
        engines[1].close()
        await wait_lost(plane.client, 1)
        await do(engines[0], "finish_weight_update")
        await settle()

        snapshot = plane.weights.snapshot()
        assert (snapshot.state, snapshot.stale) == (SyncState.FAILED, (1,))


async def test_an_update_under_way_ends_with_its_engine_and_leaves_nothing_incomplete() -> None:
    async with opened() as (plane, [engine]), trio.open_nursery() as nursery:
        nursery.start_soon(do, engine, "init_weight_transfer_engine", "start_weight_update")
        await plane.weights.init({})
        await plane.weights.start()
        before = plane.weights.snapshot()
        engine.close()
        await wait_lost(plane.client)
        after = plane.weights.snapshot()

        assert (before.incomplete, after.incomplete) == ((0,), ())
        assert (before.state, after.state) == (SyncState.STARTED, SyncState.FAILED)


async def test_adapters_that_engines_forget_with_new_weights_are_loaded_again() -> None:
    async with opened(registration=WITH_LORA) as (plane, [engine]), trio.open_nursery() as nursery:
        paths = list[str]()

        async def load() -> None:
            call = await engine.receive_utility()
            paths.append(decode_lora(call.args[0]).path)
            engine.answer(call, result=True)

        async def serve() -> None:
            await load()
            await do(engine, *UPDATE_ORDERS, "finish_weight_update")
            await load()

        nursery.start_soon(serve)
        await plane.client.adapters.load(ADAPTER)
        await plane.weights.init({})
        await plane.weights.start()
        await plane.weights.update({"a": 1})
        await plane.weights.finish()

        assert paths == ["/adapters/a"] * 2
        assert plane.weights.state is SyncState.INITIALIZED


async def test_adapters_that_are_not_loaded_again_in_time_fail_no_update(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        opened(seconds=0.2, registration=WITH_LORA) as (plane, [engine]),
        trio.open_nursery() as nursery,
    ):

        async def serve() -> None:
            engine.answer(await engine.receive_utility(), result=True)
            await do(engine, *UPDATE_ORDERS, "finish_weight_update")

        nursery.start_soon(serve)
        await plane.client.adapters.load(ADAPTER)
        await plane.weights.init({})
        await plane.weights.start()
        await plane.weights.update({"a": 1})
        await plane.weights.finish()

        assert plane.weights.incomplete == ()
        assert "not all LoRA adapters were loaded again" in caplog.text


async def test_adapters_are_loaded_again_after_an_update_that_was_given_up() -> None:
    async with opened(registration=WITH_LORA) as (plane, [engine]), trio.open_nursery() as nursery:

        async def load() -> None:
            call = await engine.receive_utility()
            assert call.method == "add_lora"
            engine.answer(call, result=True)

        async def serve() -> None:
            await load()
            await do(engine, *UPDATE_ORDERS[:2], "finish_weight_update")
            await load()
            await do(engine, "shutdown_weight_transfer_engine")

        nursery.start_soon(serve)
        await plane.client.adapters.load(ADAPTER)
        await plane.weights.init({})
        await plane.weights.start()
        await plane.weights.shutdown()

        assert plane.weights.state is SyncState.UNINITIALIZED
