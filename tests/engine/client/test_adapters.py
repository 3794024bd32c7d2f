"""Loading adapters on all engines, giving them to those that join, and unloading them."""

from contextlib import AbstractAsyncContextManager

import attrs
import pytest
import trio
from msgspec.structs import replace

from tests.engine import _helpers
from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    assert_idle,
    rank_state,
    request,
    settle,
    state_of,
    wait_joined,
    wait_lost,
)
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineState,
    FinishReason,
    LoraRequest,
    RankState,
    SamplingParams,
    open_engine_client,
)
from vllmfront.engine.wire import Utility, decode_lora
from vllmfront.errors import (
    EngineUnavailable,
    ModelNotFound,
    RequestInterrupted,
    RequestRejected,
    StartupFailed,
    UtilityCallFailed,
    UtilityCallTimeout,
)
from vllmfront.testing import REGISTRATION, FakeEngine

WITH_LORA = attrs.evolve(REGISTRATION, supports_lora=True, max_loras=2)
A = LoraRequest(name="a", int_id=0, path="/adapters/a")
PATIENT = attrs.evolve(CONFIG, recovery_wait=5)


def engine_for(client: EngineClient, rank: int = 0) -> FakeEngine:
    return _helpers.engine_for(client, rank, WITH_LORA)


def open_engines(
    count: int = 1, config: EngineClientConfig = PATIENT
) -> AbstractAsyncContextManager[tuple[EngineClient, list[FakeEngine]]]:
    return _helpers.open_engines(count, config, registration=WITH_LORA)


def added(call: Utility) -> LoraRequest:
    assert call.method == "add_lora"
    return decode_lora(call.args[0])


async def loaded(
    client: EngineClient, engines: list[FakeEngine], lora: LoraRequest = A
) -> LoraRequest:
    """Load *lora*, which all engines agree to."""
    made = list[LoraRequest]()

    async def load() -> None:
        made.append(await client.adapters.load(lora))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load)
        for engine in engines:
            call = await engine.receive_utility()
            assert call.method == "add_lora"
            engine.answer(call, result=True)
    return made[0]


async def test_an_adapter_is_served_once_every_engine_has_it() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        nursery.start_soon(client.adapters.load, A)
        calls = [await engine.receive_utility() for engine in engines]
        assert [added(call).path for call in calls] == ["/adapters/a"] * 2
        engines[0].answer(calls[0], result=True)
        await settle()
        assert client.adapters.find("a") is None

        engines[1].answer(calls[1], result=True)
        await settle()

        assert client.adapters.find("a") == replace(A, int_id=1)


async def test_requests_for_an_adapter_say_so_to_the_engine() -> None:
    async with open_engines() as (client, [engine]):
        lora = await loaded(client, [engine])

        async with client.submit(request(lora=lora)):
            assert (await engine.receive_add()).request.lora == replace(A, int_id=1)


async def test_a_name_is_taken_unless_it_is_loaded_in_place() -> None:
    async with open_engines() as (client, [engine]):
        await loaded(client, [engine])
        with pytest.raises(RequestRejected, match="`a` is already loaded") as caught:
            await client.adapters.load(A)
        assert caught.value.param == "lora_name"

        again = replace(A, path="/adapters/a2", load_inplace=True)
        lora = await loaded(client, [engine], again)

        assert lora == LoraRequest(name="a", int_id=1, path="/adapters/a2")
        assert client.adapters.served == (lora,)


async def test_what_one_engine_cannot_load_all_forget() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        failures = list[UtilityCallFailed]()

        async def load() -> None:
            with pytest.raises(UtilityCallFailed) as caught:
                await client.adapters.load(A)
            failures.append(caught.value)

        nursery.start_soon(load)
        calls = [await engine.receive_utility() for engine in engines]
        engines[0].answer(calls[0], result=True)
        engines[1].answer(calls[1], failure="no adapter found for /adapters/a")
        for engine in engines:
            removal = await engine.receive_utility()
            assert (removal.method, removal.args) == ("remove_lora", [1])
            engine.answer(removal, result=engine is engines[0])
        await settle()

        assert [str(failure) for failure in failures] == ["no adapter found for /adapters/a"]
        assert client.adapters.served == ()
        assert_idle(client)


async def test_a_load_that_takes_too_long_is_given_up() -> None:
    config = attrs.evolve(PATIENT, adapter_seconds=0.05)
    async with open_engines(config=config) as (client, [engine]), trio.open_nursery() as nursery:

        async def load() -> None:
            with pytest.raises(UtilityCallTimeout, match="engine 0 did not answer add_lora"):
                await client.adapters.load(A)

        nursery.start_soon(load)
        await engine.receive_utility()
        removal = await engine.receive_utility()
        assert removal.method == "remove_lora"
        engine.answer(removal, result=False)


async def test_engines_without_support_are_not_asked() -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            assert client.handshake_address is not None
            with FakeEngine(client.handshake_address) as engine:
                await engine.join()
                await client.wait_ready()

                with pytest.raises(RequestRejected, match="not started with LoRA enabled"):
                    await client.adapters.load(A)
                with pytest.raises(RequestRejected, match="not started with LoRA enabled"):
                    await client.adapters.unload("a")

                assert engine.heard_nothing()


async def test_nothing_is_loaded_while_no_engine_serves() -> None:
    async with open_engines() as (client, [engine]):
        engine.close()
        await wait_lost(client)

        with pytest.raises(EngineUnavailable):
            await client.adapters.load(A)


async def test_who_asks_to_load_may_leave() -> None:
    async with open_engines() as (client, [engine]):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.adapters.load, A)
            call = await engine.receive_utility()
            nursery.cancel_scope.cancel(reason="the operator has gone")
        engine.answer(call, result=True)
        await settle()

        assert client.adapters.find("a") is not None


async def test_loads_and_unloads_of_one_name_take_turns() -> None:
    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:
        rejected = list[str]()

        async def load(lora: LoraRequest) -> None:
            try:
                await client.adapters.load(lora)
            except RequestRejected as error:
                rejected.append(str(error))

        for _ in range(2):
            nursery.start_soon(load, A)
        nursery.start_soon(load, replace(A, name="b"))
        await settle()
        calls = [await engine.receive_utility() for _ in range(2)]
        assert {added(call).name for call in calls} == {"a", "b"}, "other names do not wait"
        assert engine.heard_nothing()
        nursery.start_soon(client.adapters.unload, "b")
        await settle()
        for call in calls:
            engine.answer(call, result=True)
        removal = await engine.receive_utility()
        engine.answer(removal, result=True)
        await settle()

        assert [one.name for one in client.adapters.served] == ["a"]
        assert len(rejected) == 1
        assert len(client.adapters._turns) == 0
        with pytest.raises(ModelNotFound, match="`b` does not exist"):
            await client.adapters.unload("b")


async def test_an_engine_that_starts_anew_has_all_adapters_before_it_serves() -> None:
    async with open_engines() as (client, [old]):
        lora = await loaded(client, [old])
        old.close()
        await wait_lost(client)
        async with trio.open_nursery() as nursery:
            sink = RecordingSink()

            async def ask() -> None:
                async with client.submit(request(lora=lora), [sink]) as stream:
                    await stream.wait_finished()

            nursery.start_soon(ask)
            with engine_for(client) as new:
                await new.join()
                call = await new.receive_utility()
                assert added(call) == replace(lora, load_inplace=True)
                assert rank_state(client) is RankState.PREPARING
                assert await new.hears_nothing_more()
                new.answer(call, result=True)
                add = await new.receive_add()
                new.send_tokens(add.internal_id, [5], FinishReason.LENGTH)
                await stream_ended(client)

    assert sink.tokens == [5]


async def stream_ended(client: EngineClient) -> None:
    while client.num_in_flight:  # noqa: ASYNC110 (no event for one)
        await trio.sleep(0.005)


async def test_an_adapter_that_cannot_be_loaded_again_is_served_no_more() -> None:
    async with open_engines() as (client, [old]):
        lora = await loaded(client, [old])
        old.close()
        await wait_lost(client)
        with engine_for(client) as new:
            await new.join()
            call = await new.receive_utility()
            new.answer(call, failure="No adapter found for /adapters/a")
            await wait_joined(client)

            assert client.adapters.served == ()
            with pytest.raises(ModelNotFound):
                client.submit(request(lora=lora))
            async with client.submit(request()):
                await new.receive_add()


async def test_adapters_of_the_start_come_before_the_first_request() -> None:
    config = attrs.evolve(CONFIG, adapters=[A, replace(A, name="b")])
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            with engine_for(client) as engine:
                await engine.join()
                for number, name in enumerate("ab", 1):
                    call = await engine.receive_utility()
                    assert (added(call).name, added(call).int_id) == (name, number)
                    assert state_of(client) is EngineState.LOADING
                    engine.answer(call, result=True)
                await client.wait_ready()

                assert [one.int_id for one in client.adapters.served] == [1, 2]


async def test_the_start_fails_with_an_adapter_that_cannot_be_loaded() -> None:
    config = attrs.evolve(CONFIG, adapters=[A])
    failure = pytest.RaisesExc(StartupFailed, match="'a' could not be loaded from '/adapters/a'")
    with trio.fail_after(5), pytest.RaisesGroup(failure, flatten_subgroups=True):
        async with open_engine_client(config) as client:
            with engine_for(client) as engine:
                await engine.join()
                engine.answer(await engine.receive_utility(), failure="no such file")
                await trio.sleep_forever()


async def test_what_runs_with_an_adapter_goes_on_when_it_is_unloaded() -> None:
    async with open_engines() as (client, [engine]):
        lora = await loaded(client, [engine])
        sink = RecordingSink()
        async with client.submit(request(lora=lora), [sink]) as stream:
            add = await engine.receive_add()

            await client.adapters.unload("a")

            assert client.adapters.find("a") is None
            assert await engine.hears_nothing_more(), "it would have to load it again"
            engine.send_tokens(add.internal_id, [1, 2], FinishReason.LENGTH)
            await stream.wait_finished()
        removal = await engine.receive_utility()
        assert (removal.method, removal.args) == ("remove_lora", [1])
        engine.answer(removal, result=False)
        await settle()

        assert sink.tokens == [1, 2]
        with pytest.raises(ModelNotFound, match="`a` does not exist"):
            client.submit(request(lora=lora))


async def test_a_request_that_was_prepared_before_the_unload_is_not_sent_after_it() -> None:
    async with open_engines() as (client, [engine]):
        lora = await loaded(client, [engine])
        stream = client.submit(request(lora=lora))
        await client.adapters.unload("a")

        with pytest.raises(ModelNotFound):
            async with stream:
                pass

        assert (await engine.receive_utility()).method == "remove_lora"
        assert_idle_but_for(client, calls=1)


def assert_idle_but_for(client: EngineClient, *, calls: int) -> None:
    snapshot = client.snapshot()
    assert (snapshot.requests, snapshot.engine_requests, snapshot.pending_calls) == (0, 0, calls)


async def test_an_unload_may_say_which_adapter_it_means() -> None:
    async with open_engines() as (client, [engine]):
        await loaded(client, [engine])

        with pytest.raises(RequestRejected, match="99 does not match loaded adapter `a` with id 1"):
            await client.adapters.unload("a", 99)
        await client.adapters.unload("a", 1)

        assert client.adapters.served == ()


async def test_a_stream_goes_on_where_its_adapter_is_loaded_again() -> None:
    async with open_engines() as (client, [old]):
        lora = await loaded(client, [old])
        sink = RecordingSink()
        fields = SamplingParams(max_tokens=4, temperature=0.0)
        async with client.submit(request(lora=lora, sampling=fields), [sink]) as stream:
            add = await old.receive_add()
            old.send_tokens(add.internal_id, [7, 8])
            await settle()
            old.close()
            await wait_lost(client)
            with engine_for(client) as new:
                await new.join()
                call = await new.receive_utility()
                new.answer(call, result=True)
                add = await new.receive_add()
                new.send_tokens(add.internal_id, [9, 10], FinishReason.LENGTH)
                await stream.wait_finished()

    assert add.request.prompt_token_ids == [1, 2, 3, 7, 8]
    assert add.request.lora == lora
    assert sink.tokens == [7, 8, 9, 10]


async def test_a_stream_does_not_go_on_with_other_weights() -> None:
    async with open_engines() as (client, [old]):
        lora = await loaded(client, [old])
        fields = SamplingParams(max_tokens=4, temperature=0.0)
        with pytest.raises(RequestInterrupted, match="'a' is not what it was any more"):
            async with client.submit(request(lora=lora, sampling=fields)) as stream:
                add = await old.receive_add()
                old.send_tokens(add.internal_id, [7, 8])
                await settle()
                await loaded(client, [old], replace(A, path="/other", load_inplace=True))
                old.close()
                await wait_lost(client)
                with engine_for(client) as new:
                    await new.join()
                    new.answer(await new.receive_utility(), result=True)
                    await stream.wait_finished()


async def test_an_engine_that_joins_during_a_load_is_not_forgotten() -> None:
    async with open_engines(2) as (client, [first, second]), trio.open_nursery() as nursery:
        second.close()
        await wait_lost(client, 1)
        nursery.start_soon(client.adapters.load, A)
        call = await first.receive_utility()
        with engine_for(client, 1) as third:
            await third.join()
            await wait_joined(client, 1)
            first.answer(call, result=True)

            late = await third.receive_utility()
            assert client.adapters.find("a") is None
            assert added(late).name == "a"
            third.answer(late, result=True)
            await settle()

            assert client.adapters.find("a") is not None


async def test_an_engine_that_dies_during_a_load_does_not_fail_it() -> None:
    async with open_engines(2) as (client, [first, second]), trio.open_nursery() as nursery:
        nursery.start_soon(client.adapters.load, A)
        await first.receive_utility()
        call = await second.receive_utility()
        second.close()
        await wait_lost(client, 1)
        del call

        again = await first.receive_utility()
        first.answer(again, result=True)
        await settle()

        assert client.adapters.find("a") is not None
