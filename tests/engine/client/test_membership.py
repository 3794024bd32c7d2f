"""Engines that load, die, leave and come back."""

import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

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
    wait_lost,
)
from vllmfront.engine import (
    EngineClient,
    EngineClientConfig,
    EngineState,
    FinishReason,
    RankState,
    TerminalCause,
    open_engine_client,
)
from vllmfront.engine.transport import adopted_address
from vllmfront.engine.wire import Abort, Add, EngineAddresses, SchedulerStats, encode_stats
from vllmfront.errors import (
    ConfigurationError,
    EngineDied,
    EngineUnavailable,
    Reason,
    RequestInterrupted,
    StartupFailed,
    VllmFrontError,
)
from vllmfront.testing import REGISTRATION, FakeEngine

IMPATIENT = attrs.evolve(CONFIG, recovery_wait=0)
"""No request waits for another engine."""


async def test_the_block_begins_while_the_engine_loads() -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            assert state_of(client) is EngineState.LOADING
            with pytest.raises(EngineUnavailable):
                async with client.submit(request()):
                    pass
            with pytest.raises(EngineUnavailable):
                await client.call_utility("is_sleeping")
            with engine_for(client) as engine:
                await engine.say_hello()
                engine.register()
                await settle()
                assert state_of(client) is EngineState.LOADING
                engine.say_ready()
                await client.wait_ready()

            assert state_of(client) is EngineState.READY
            assert client.max_model_len == 1024
            assert client.engine_version == "0.33.0"


async def test_ready_may_be_seen_before_the_registration() -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            with engine_for(client) as engine:
                await engine.say_hello()
                engine.say_ready()
                await settle()
                engine.register()
                await client.wait_ready()


async def test_info_sums_up_all_engines() -> None:
    config = attrs.evolve(CONFIG, engine_count=2)
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            assert client.handshake_address is not None
            short = attrs.evolve(REGISTRATION, max_model_len=512, num_gpu_blocks=1)
            with (
                FakeEngine(client.handshake_address, 0) as one,
                FakeEngine(client.handshake_address, 1, short) as other,
            ):
                await other.join()
                await settle()
                assert state_of(client) is EngineState.LOADING
                await one.join()
                await client.wait_ready()

            info = client.info
            assert (info.max_model_len, info.num_gpu_blocks, info.block_size) == (512, 101, 16)
            assert list(info.registrations) == [0, 1]


async def test_nonsense_in_the_handshake_costs_only_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            assert client.handshake_address is not None
            with FakeEngine(client.handshake_address, 7) as stranger:
                stranger._handshake.send(b"\xc1")
                stranger.say_ready()
                await settle()
            with engine_for(client) as engine:
                engine.say_ready()
                await engine.say_hello()
                engine.register(payload=b"\xc1 no map")
                await settle()
                assert state_of(client) is EngineState.LOADING
                engine.register()
                engine.say_ready()
                await client.wait_ready()

    assert "engine 7 is none of the expected engines (0)" in caplog.text
    assert "engine 0 said READY before HELLO" in caplog.text
    assert caplog.text.count("Ignored a message on the input socket") == 1


async def test_an_unknown_version_is_served_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    new = attrs.evolve(REGISTRATION, vllm_version="1.0.0")
    config = attrs.evolve(CONFIG, engine_count=2)
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            assert client.handshake_address is not None
            with (
                FakeEngine(client.handshake_address, 0, new) as one,
                FakeEngine(client.handshake_address, 1, new) as other,
            ):
                await one.join()
                await other.join()
                await client.wait_ready()

    assert caplog.text.count("1.0.0, which this frontend was never tried with") == 1


async def test_an_engine_killed_while_it_loads_is_noticed_at_once_and_may_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            old = engine_for(client)
            await old.say_hello()
            old.close()
            error = await client.wait_lost()

            assert str(error) == "engine 0 closed its connection while loading"
            assert "Engine 0 is lost: engine 0 closed its connection while loading" in caplog.text
            with engine_for(client) as new:
                await new.say_hello()
                await settle()
                assert state_of(client) is EngineState.LOADING
                new.register()
                new.say_ready()
                await client.wait_ready()
            assert client.snapshot().ranks[0].incarnation == 2


async def test_of_two_that_load_only_the_killed_one_is_lost() -> None:
    config = attrs.evolve(CONFIG, engine_count=2)
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            with engine_for(client, 0) as one:
                other = engine_for(client, 1)
                await one.say_hello()
                await other.say_hello()
                other.close()
                await wait_lost(client, 1)

                assert rank_state(client, 0) is RankState.LOADING
                assert state_of(client) is EngineState.LOADING


async def test_a_connection_that_only_broke_may_still_bring_its_engine() -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            with engine_for(client) as engine:
                await engine.say_hello()
                engine.reconnect_handshake()
                await client.wait_lost()
                engine.register()
                engine.say_ready()
                await client.wait_state(lambda state: state is EngineState.READY)

            assert client.snapshot().ranks[0].incarnation == 1


async def test_an_engine_that_said_ready_may_close_its_handshake() -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            with engine_for(client) as engine:
                await engine.say_hello()
                engine.say_ready()
                engine.close_handshake()
                await settle()
                assert state_of(client) is EngineState.LOADING
                engine.register()
                await client.wait_ready()


async def test_who_watches_processes_tells_of_the_end_while_loading() -> None:
    config = attrs.evolve(CONFIG, watch_loading=False)
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            engine = engine_for(client)
            await engine.say_hello()
            engine.close()
            await settle()
            assert state_of(client) is EngineState.LOADING
            client.report_death("the engine process was killed by SIGKILL")

            assert str(client.error) == "the engine process was killed by SIGKILL"


STEPS: list[tuple[str, list[Callable[[FakeEngine], None]]]] = [
    ("READY", []),
    ("registration", [FakeEngine.say_ready]),
]


async def test_start_up_fails_without_a_hello(autojump_clock: MockClock) -> None:
    config = attrs.evolve(CONFIG, ready_timeout=600.0, engine_count=2)
    started = autojump_clock.current_time()
    with pytest.RaisesGroup(pytest.RaisesExc(StartupFailed, match="no HELLO from engine 0, 1")):
        async with open_engine_client(config) as client:
            await trio.sleep_forever()

    assert autojump_clock.current_time() - started == pytest.approx(600)
    assert state_of(client) is EngineState.FAILED
    with pytest.raises(StartupFailed):
        await client.wait_ready()


@pytest.mark.parametrize(("step", "done"), STEPS)
async def test_start_up_fails_without_a_later_step(
    step: str, done: list[Callable[[FakeEngine], None]]
) -> None:
    config = attrs.evolve(CONFIG, ready_timeout=0.5)
    with pytest.RaisesGroup(pytest.RaisesExc(StartupFailed, match=f"no {step} from engine 0")):
        async with open_engine_client(config) as client:
            with engine_for(client) as engine:
                await engine.say_hello()
                for act in done:
                    act(engine)
                await trio.sleep_forever()


async def test_a_process_in_place_of_a_lost_one_must_get_on_as_well(
    mock_clock: MockClock,
) -> None:
    mock_clock.rate = 1.0
    config = attrs.evolve(CONFIG, ready_timeout=600.0)
    async with open_engines(config=config, seconds=2000) as (client, [old]):
        old.close()
        await client.wait_lost()
        with engine_for(client) as stuck:
            await stuck.say_hello()
            await settle()
            assert rank_state(client) is RankState.LOADING
            mock_clock.jump(599)
            await settle()
            assert rank_state(client) is RankState.LOADING
            mock_clock.jump(2)
            error = await client.wait_lost()

            assert isinstance(error, StartupFailed)
            assert "no READY from engine 0 within 600 seconds" in str(error)
            assert state_of(client) is EngineState.RECOVERING
            assert str(client.error) == "engine 0 closed its connection", "the first cause sticks"
        with engine_for(client) as new:
            await new.join()
            await client.wait_ready()


async def test_a_process_that_was_started_is_awaited_before_it_says_hello(
    mock_clock: MockClock,
) -> None:
    mock_clock.rate = 1.0
    config = attrs.evolve(CONFIG, ready_timeout=600.0)
    async with open_engines(config=config, seconds=2000) as (client, [old]):
        old.close()
        await client.wait_lost()
        client.expect_engine()
        assert rank_state(client) is RankState.LOADING
        assert state_of(client) is EngineState.RECOVERING
        mock_clock.jump(601)
        error = await client.wait_lost()
        assert "no HELLO from engine 0 within 600 seconds" in str(error)

        client.expect_engine()
        mock_clock.jump(40)
        with engine_for(client) as new:
            await new.join()
            await client.wait_ready()
            assert client.snapshot().ranks[0].load_seconds == pytest.approx(40, abs=2)
            client.expect_engine(0)
            assert rank_state(client) is RankState.LOADING, "it is being replaced"


async def test_giving_up_is_for_good() -> None:
    async with open_engines() as (client, [engine]):
        client.give_up(EngineDied("it has failed too often"))
        client.give_up(EngineDied("another reason"))
        assert state_of(client) is EngineState.FAILED
        assert str(await client.wait_lost()) == "it has failed too often"
        with pytest.raises(EngineDied, match="too often"):
            await client.wait_ready()
        engine.close()
        with engine_for(client) as late:
            await late.join()
            await settle()

            assert state_of(client) is EngineState.FAILED


def sentinel(_client: EngineClient, engine: FakeEngine) -> None:
    engine.report_death()


def killed(_client: EngineClient, engine: FakeEngine) -> None:
    engine.close()


def process_ended(client: EngineClient, _engine: FakeEngine) -> None:
    client.report_death("the engine process was killed by SIGKILL")


async def test_what_a_lost_engine_still_says_of_itself_counts_no_more() -> None:
    async with open_engines() as (client, [engine]):
        busy = encode_stats(SchedulerStats(num_running_reqs=7))
        engine.send_rows([], scheduler_stats=busy)
        await settle()
        before = client.metrics.snapshot().ranks[0].running
        client.report_death("the engine process was killed by SIGKILL")
        engine.send_rows([], scheduler_stats=busy)
        await settle()

        assert before == 7
        assert client.metrics.snapshot().ranks[0].running == 0


@pytest.mark.parametrize("die", [sentinel, killed, process_ended])
async def test_death_reaches_every_stream_and_call(
    die: Callable[[EngineClient, FakeEngine], None],
) -> None:
    async with open_engines(config=IMPATIENT) as (client, [engine]):
        sink = RecordingSink()
        ended: list[str] = []

        async def stream() -> None:
            with pytest.raises(RequestInterrupted):
                async with client.submit(request(), [sink]) as stream:
                    await stream.wait_finished()
            ended.append("stream")

        async def call() -> None:
            with pytest.raises(EngineDied):
                await client.call_utility("pause_scheduler", "wait", timeout=None)
            ended.append("call")

        async def watch() -> None:
            assert isinstance(await client.wait_lost(), EngineDied)
            ended.append("watch")

        async with trio.open_nursery() as nursery:
            for task in (stream, call, watch):
                nursery.start_soon(task)
            await engine.receive()
            await engine.receive()
            die(client, engine)

        assert sorted(ended) == ["call", "stream", "watch"]
        assert state_of(client) is EngineState.RECOVERING
        assert [type(error) for error in sink.errors] == [RequestInterrupted]
        assert client.metrics.snapshot().causes["engine_died"] == 1
        with pytest.raises(EngineUnavailable) as refused:
            async with client.submit(request()):
                pass
        assert refused.value.reason is Reason.RECOVERING
        with pytest.raises(EngineUnavailable):
            await client.call_utility("is_sleeping")
        assert_idle(client)


async def test_the_first_cause_of_death_sticks() -> None:
    async with open_engines() as (client, _engines):
        client.report_death("first")
        client.report_death("second")

        assert str(client.error) == "first"


async def test_a_send_to_a_killed_engine_fails_at_once() -> None:
    async with open_engines(config=IMPATIENT) as (client, [engine]):
        engine.close()
        time.sleep(0.05)  # noqa: ASYNC251 (the monitor's task must not run before the send)

        with pytest.raises(RequestInterrupted):
            async with client.submit(request()) as stream:
                await stream.wait_finished()
        assert state_of(client) is EngineState.RECOVERING
        assert_idle(client)


async def test_leaving_a_stream_may_be_what_finds_its_engine_killed() -> None:
    async with open_engines() as (client, [engine]):
        async with client.submit(request()):
            await engine.receive_add()
            engine.close()
            time.sleep(0.05)  # noqa: ASYNC251 (the monitor's task must not run before the send)

        assert state_of(client) is EngineState.RECOVERING
        assert_idle(client)


async def test_what_was_sent_before_the_end_still_arrives() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1], FinishReason.ABORT)
            engine.close()
            await stream.wait_finished()

        assert sink.tokens == [1]
        assert stream.cause is TerminalCause.ENGINE_ABORTED


async def test_an_engine_leaves_and_comes_back() -> None:
    async with open_engines(config=IMPATIENT) as (client, [old]):
        before = RecordingSink()
        with pytest.raises(RequestInterrupted, match="closed its connection"):
            async with client.submit(request("before"), [before]) as stream:
                add = await old.receive_add()
                old.close()
                await stream.wait_finished()
        with engine_for(client) as new:
            await new.say_hello()
            await settle()
            assert state_of(client) is EngineState.RECOVERING
            assert rank_state(client) is RankState.LOADING
            new.register()
            new.say_ready()
            await client.wait_ready()
            after = RecordingSink()
            async with client.submit(request("after"), [after]) as stream:
                fresh = await new.receive_add()
                new.send_tokens(add.internal_id, [1])
                new.send_tokens(fresh.internal_id, [2], FinishReason.STOP)
                await stream.wait_finished()

        assert before.tokens == []
        assert after.tokens == [2]
        assert client.snapshot().ranks[0].incarnation == 2
        assert_idle(client)


async def test_a_hello_from_a_rank_that_serves_replaces_it() -> None:
    async with open_engines(config=IMPATIENT) as (client, [old]):
        with pytest.raises(RequestInterrupted, match="replaced"):
            async with client.submit(request(), [RecordingSink()]) as stream:
                add = await old.receive_add()
                new = engine_for(client)
                await new.say_hello()
                await stream.wait_finished()
        with new:
            new.register()
            new.say_ready()
            await client.wait_ready()
            # Late words of the old process, its death included, are nobody's any more.
            old.send_tokens(add.internal_id, [1])
            old.report_death()
            old.close()
            await settle()
            await trio.sleep(0.1)

            assert state_of(client) is EngineState.READY
            async with client.submit(request()) as stream:
                # The end of the old connection may have had it tried, with an empty ABORT.
                while not isinstance(fresh := await new.receive(), Add):
                    assert fresh == Abort(request_ids=[])
                new.send_tokens(fresh.internal_id, [2], FinishReason.STOP)
                await stream.wait_finished()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_replaced_process_that_lives_on_is_not_mixed_up_with_the_new_one(
    count: int,
) -> None:
    async with open_engines(count) as (client, engines):
        old = engines[0]
        # Its connection is known by something that it said.
        old.send_rows([], scheduler_stats=busy(1))
        await settle()
        call = CallResult()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call.make, client)
            asked = await old.receive_utility()
            sink = RecordingSink()
            async with client.submit(request(data_parallel_rank=0), [sink]) as stream:
                first = await old.receive_add()
                with engine_for(client, 0) as new:
                    await new.join()
                    again = await new.receive_add()
                    # All of this is about things of the past.
                    old.send_tokens(first.internal_id, [99])
                    old.send_rows([], scheduler_stats=busy(7))
                    old.answer(asked, "too late")
                    old.report_death()
                    await settle()

                    rank = client.snapshot().ranks[0]
                    assert (rank.state, rank.in_flight) == (RankState.READY, 1)
                    assert isinstance(call.error, EngineDied)
                    load = client.metrics.snapshot().ranks[0]
                    assert (load.running, load.waiting) == (0, 0)
                    assert client._membership.ranks[0].load.score() == 1
                    assert again.internal_id != first.internal_id
                    new.send_tokens(again.internal_id, [5], FinishReason.STOP)
                    await stream.wait_finished()
        assert sink.tokens == [5]
        assert not sink.errors


def busy(running: int) -> dict[str, Any]:
    return dict(encode_stats(SchedulerStats(num_running_reqs=running)))


@attrs.define
class CallResult:
    """What comes of a utility call to rank 0."""

    error: VllmFrontError | None = None

    async def make(self, client: EngineClient) -> None:
        try:
            await client.call_utility("is_sleeping", ranks=[0])
        except VllmFrontError as error:
            self.error = error


async def test_a_process_that_is_reported_dead_while_loading() -> None:
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client, trio.open_nursery() as nursery:

            async def wait() -> None:
                error = await client.wait_lost()
                assert str(error) == "the engine process ended with exit status 1"

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            client.report_death("the engine process ended with exit status 1")


async def test_one_rank_dies_and_the_others_go_on() -> None:
    async with open_engines(2, attrs.evolve(IMPATIENT, continuation=False)) as (client, engines):
        sinks = [RecordingSink(), RecordingSink()]
        with pytest.raises(RequestInterrupted):
            async with (
                client.submit(request("a"), sinks[:1]) as on_0,
                client.submit(request("b"), sinks[1:]) as on_1,
            ):
                adds = [await engine.receive_add() for engine in engines]
                for engine, add in zip(engines, adds, strict=True):
                    engine.send_tokens(add.internal_id, [1])
                await settle()
                engines[0].report_death()
                await wait_lost(client, 0)
                assert state_of(client) is EngineState.READY
                async with client.submit(request("c")):
                    assert (await engines[1].receive_add()).request.request_id == "c"
                await engines[1].receive_abort()
                engines[1].send_tokens(adds[1].internal_id, [2], FinishReason.STOP)
                await on_1.wait_finished()
                await on_0.wait_finished()

        assert [sink.tokens for sink in sinks] == [[1], [1, 2]]
        assert sinks[1].errors == []
        with pytest.raises(EngineUnavailable):
            async with client.submit(request(data_parallel_rank=0)):
                pass
        engines[1].report_death()
        await client.wait_lost()
        assert_idle(client)


async def test_a_rank_that_dies_without_a_word_before_is_found_by_its_connection() -> None:
    async with open_engines(2) as (client, engines):
        engines[1].report_death()
        engines[1].close()
        await wait_lost(client, 1)

        assert state_of(client) is EngineState.READY
        assert rank_state(client) is RankState.READY


async def test_a_lost_rank_is_replaced_by_another_at_the_send() -> None:
    async with open_engines(2) as (client, engines):
        engines[0].close()
        time.sleep(0.05)  # noqa: ASYNC251 (the monitor's task must not run before the send)

        async with client.submit(request()):
            assert (await engines[1].receive_add()).request.request_id == "r"


async def test_inherited_sockets_need_no_handshake() -> None:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [adopted_address(listener.fileno()) for listener in listeners]
    config = EngineClientConfig(
        input_fd=listeners[0].detach(),
        output_fd=listeners[1].detach(),
        start_rank=3,
        limits=CONFIG.limits,
    )
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            assert client.handshake_address is None
            with FakeEngine("tcp://127.0.0.1:1", 3) as engine:
                engine.addresses = EngineAddresses(inputs=addresses[:1], outputs=addresses[1:])
                engine.register()
                await client.wait_ready()
                async with client.submit(request()) as stream:
                    add = await engine.receive_add()
                    engine.send_tokens(add.internal_id, [1], FinishReason.STOP)
                    await stream.wait_finished()


async def test_remote_engines_get_tcp_addresses_of_the_advertised_host() -> None:
    config = attrs.evolve(CONFIG, all_local=False, advertised_host="localhost")
    with trio.fail_after(5):
        async with open_engine_client(config) as client:
            assert client.handshake_address is not None
            assert client.handshake_address.startswith("tcp://localhost:")
            with engine_for(client) as engine:
                await engine.join()
                await client.wait_ready()
                assert engine.addresses is not None
                assert engine.addresses.inputs[0].startswith("tcp://localhost:")
                assert engine.addresses.coordinator_input is None


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
async def test_engines_can_be_reached_over_ipv6() -> None:
    config = attrs.evolve(CONFIG, all_local=False, handshake_host="::1")
    async with open_engines(config=config) as (client, [engine]):
        assert client.handshake_address is not None
        assert client.handshake_address.startswith("tcp://[::1]:")
        async with client.submit(request()) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1], FinishReason.STOP)
            await stream.wait_finished()


async def test_a_host_that_nobody_can_connect_to_must_be_advertised() -> None:
    with pytest.raises(ConfigurationError, match=r"0\.0\.0\.0"):
        async with open_engine_client(attrs.evolve(CONFIG, handshake_host="0.0.0.0")):
            pass


async def test_cancelling_a_client_in_each_phase_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for steps in range(4):
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery, open_engine_client(CONFIG) as client:
                with engine_for(client) as engine:
                    if steps > 0:
                        await engine.say_hello()
                    if steps > 1:
                        engine.register()
                    if steps > 2:
                        engine.say_ready()
                        await client.wait_ready()
                        await client.submit(request(), [RecordingSink()]).__aenter__()
                    await settle()
                    nursery.cancel_scope.cancel()
                    await trio.lowlevel.checkpoint()
        assert_idle(client)


async def test_what_was_sent_before_the_last_words_is_pushed_first() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1])
            engine.send_tokens(add.internal_id, [2], FinishReason.STOP)
            engine.report_death()
            time.sleep(0.05)  # noqa: ASYNC251 (all of it must be there before the reader runs)
            await stream.wait_finished()
        await client.wait_lost()

        assert sink.tokens == [1, 2]
        assert stream.cause is TerminalCause.STOP
