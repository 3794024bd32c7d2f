"""Streams: what is sent, pushed and aborted over the life of a request."""

import gc
import time
import weakref
from contextlib import AsyncExitStack, nullcontext

import attrs
import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    assert_idle,
    engine_for,
    ids,
    open_engines,
    request,
    settle,
)
from vllmfront.engine import (
    EngineError,
    EngineOutput,
    FinishReason,
    PrefillStats,
    SamplingParams,
    StructuredOutputs,
    TerminalCause,
    open_engine_client,
)
from vllmfront.engine.wire import Abort, plain_row
from vllmfront.errors import (
    EngineRequestFailed,
    EngineUnavailable,
    Reason,
    RequestRejected,
)
from vllmfront.testing import FakeEngine


async def test_tokens_are_pushed_in_order_and_the_end_wakes_the_task() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request("chatcmpl-1"), [sink]) as stream:
            add = await engine.receive_add()
            first = EngineOutput(new_token_ids=[5], prefill_stats=PrefillStats(num_prompt_tokens=3))
            engine.send_output(add.internal_id, first)
            engine.send_tokens(add.internal_id, [6])
            engine.send_tokens(add.internal_id, [7, 8])
            engine.send_tokens(add.internal_id, [9], FinishReason.LENGTH)
            await stream.wait_finished()

        assert sink.tokens == [5, 6, 7, 8, 9]
        assert sink.outputs[0].prefill_stats == first.prefill_stats
        assert sink.outputs[-1].finish_reason is FinishReason.LENGTH
        assert stream.cause is TerminalCause.LENGTH
        assert stream.num_generated_tokens == 5
        assert await engine.hears_nothing_more(), "a finished stream sends no abort"
        assert_idle(client)


async def test_the_engine_gets_the_public_id_and_one_of_its_own() -> None:
    async with open_engines() as (client, [engine]):
        async with client.submit(request("mine")), client.submit(request("mine")):
            adds = [await engine.receive_add() for _ in range(2)]

        assert [add.request.request_id for add in adds] == ["mine", "mine"]
        assert len({*ids(adds)}) == 2
        for add in adds:
            prefix, _, suffix = add.internal_id.rpartition("-")
            assert prefix == "mine"
            assert len(bytes.fromhex(suffix)) == 4


async def test_without_random_ids_a_duplicate_is_refused() -> None:
    async with open_engines(config=attrs.evolve(CONFIG, randomize_ids=False)) as (
        client,
        [engine],
    ):
        async with client.submit(request("mine")):
            assert (await engine.receive_add()).internal_id == "mine"
            with pytest.raises(RequestRejected, match="mine"):
                async with client.submit(request("mine")):
                    pass
            with pytest.raises(RequestRejected, match="other"):
                async with client.submit_all([request("other"), request("other")]):
                    pass
            assert client.num_in_flight == 1

        assert (await engine.receive_abort()).request_ids == ["mine"]
        assert await engine.hears_nothing_more()


async def test_messages_that_wait_together_are_merged_per_request() -> None:
    async with open_engines() as (client, [engine]):
        one, other = RecordingSink(), RecordingSink()
        async with client.submit(request("a"), [one]), client.submit(request("b"), [other]):
            a, b = ids([await engine.receive_add() for _ in range(2)])
            for token in range(10):
                engine.send_rows([plain_row(a, [token]), plain_row(b, [100 + token])])
            time.sleep(0.05)  # noqa: ASYNC251 (all of it must be there before the reader runs)
            await settle()

            assert one.tokens == list(range(10))
            assert other.tokens == list(range(100, 110))
            assert len(one.pushes) == len(other.pushes) == 1


async def test_merging_keeps_the_order_around_a_full_output() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1])
            engine.send_tokens(add.internal_id, [2])
            engine.send_output(
                add.internal_id, EngineOutput(new_token_ids=[3], num_nans_in_logits=1)
            )
            engine.send_tokens(add.internal_id, [4])
            engine.send_tokens(add.internal_id, [5], FinishReason.STOP)
            time.sleep(0.05)  # noqa: ASYNC251 (all of it must be there before the reader runs)
            await stream.wait_finished()

        assert sink.tokens == [1, 2, 3, 4, 5]
        assert sink.pushes[0] == [1, 2]


async def test_a_lone_message_of_a_thousand_rows_reaches_everybody() -> None:
    async with open_engines() as (client, [engine]):
        sinks = [RecordingSink() for _ in range(1000)]
        requests = [request(f"r{number}") for number in range(1000)]
        async with client.submit_all(requests, [[sink] for sink in sinks]) as stream:
            adds = ids([await engine.receive_add() for _ in range(1000)])
            engine.send_rows([plain_row(one, [number]) for number, one in enumerate(adds)])
            engine.send_rows([plain_row(one, [7]) for one in adds])
            engine.send_rows([plain_row(one, [8], FinishReason.STOP) for one in adds])
            await stream.wait_finished()

        assert [sink.tokens for sink in sinks] == [[number, 7, 8] for number in range(1000)]


async def test_without_sinks_a_stream_is_iterated() -> None:
    async with open_engines() as (client, [engine]):
        async with client.submit(request()) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1, 2])
            tokens = (await anext(stream)).new_token_ids
            engine.send_tokens(add.internal_id, [3], FinishReason.STOP)
            tokens += [token async for output in stream for token in output.new_token_ids]

        assert tokens == [1, 2, 3]


async def test_iterating_a_stream_with_sinks_is_a_mistake() -> None:
    async with (
        open_engines() as (client, _engines),
        client.submit(request(), [RecordingSink()]) as stream,
    ):
        with pytest.raises(TypeError, match="sinks"):
            await anext(stream)


async def test_the_number_of_sinks_must_fit() -> None:
    async with open_engines() as (client, _engines):
        with pytest.raises(ValueError, match="2 choices"):
            client.submit(request(n=2), [RecordingSink()])


async def test_a_cancelled_waiter_aborts_once_and_loses_nothing() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                async with client.submit(request(), [sink]) as stream:
                    await stream.wait_finished()

            nursery.start_soon(serve)
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1])
            await settle()
            nursery.cancel_scope.cancel()

        assert (await engine.receive_abort()).request_ids == [add.internal_id]
        assert sink.tokens == [1]
        engine.send_tokens(add.internal_id, [2])
        await settle()
        assert sink.tokens == [1]
        assert client.metrics.snapshot().unknown_outputs == 1
        assert client.metrics.snapshot().causes["client_gone"] == 1
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_cancelled_before_anything_was_sent_nothing_is_sent() -> None:
    async with open_engines() as (client, [engine]):
        stream = client.submit(request(), [RecordingSink()])
        assert not stream.children[0].live

        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_a_waiter_can_be_cancelled_and_wait_again() -> None:
    async with open_engines() as (client, [engine]):
        async with client.submit(request(), [RecordingSink()]) as stream:
            add = await engine.receive_add()
            with trio.move_on_after(0.01):
                await stream.wait_finished()
            engine.send_tokens(add.internal_id, [1], FinishReason.STOP)
            await stream.wait_finished()

        assert stream.finished


async def test_a_second_waiter_is_refused() -> None:
    async with (
        open_engines() as (client, _engines),
        client.submit(request(), [RecordingSink()]) as stream,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stream.wait_finished)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await stream.wait_finished()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("error", "given", "expected"),
    [
        (None, None, TerminalCause.CLIENT_GONE),
        (None, TerminalCause.CLIENT_STALLED, TerminalCause.CLIENT_STALLED),
        (EngineUnavailable("closing", reason=Reason.DRAINING), None, TerminalCause.SHUTDOWN),
        (RuntimeError("a bug"), None, TerminalCause.INTERNAL_ERROR),
    ],
)
async def test_leaving_early_has_a_cause(
    error: Exception | None, given: TerminalCause | None, expected: TerminalCause
) -> None:
    async with open_engines() as (client, [engine]):
        stream = client.submit(request(), [RecordingSink()])
        with nullcontext() if error is None else pytest.raises(type(error)):
            async with stream:
                await engine.receive_add()
                stream.leave_cause = given
                if error is not None:
                    raise error

        assert stream.cause is expected
        assert client.metrics.snapshot().causes[expected.value] == 1
        await engine.receive_abort()


async def test_n_becomes_as_many_requests_and_only_the_live_are_aborted() -> None:
    async with open_engines() as (client, [engine]):
        sinks = [RecordingSink() for _ in range(4)]
        async with client.submit(request("r", n=4), sinks):
            adds = [await engine.receive_add() for _ in range(4)]
            engine.send_tokens(adds[2].internal_id, [5], FinishReason.STOP)
            await settle()
            assert client.num_in_flight == 1

        assert [sink.tokens for sink in sinks] == [[], [], [5], []]
        live = [add.internal_id for add in adds if add is not adds[2]]
        assert (await engine.receive_abort()).request_ids == live
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_n_is_awaited_to_the_last_choice() -> None:
    async with open_engines() as (client, [engine]):
        async with client.submit(request(n=2)) as stream:
            first, second = ids([await engine.receive_add() for _ in range(2)])
            engine.send_tokens(second, [1], FinishReason.STOP)
            engine.send_tokens(first, [2], FinishReason.LENGTH)
            outputs = []
            while (item := await stream.next_output()) is not None:
                outputs.append((item[0], item[1].new_token_ids))

        assert outputs == [(1, [1]), (0, [2])]
        assert await engine.hears_nothing_more()


async def test_one_failing_choice_ends_the_wait_and_aborts_the_others() -> None:
    async with open_engines() as (client, [engine]):
        with pytest.raises(EngineRequestFailed):
            async with client.submit(request(n=3), [RecordingSink() for _ in range(3)]) as stream:
                adds = ids([await engine.receive_add() for _ in range(3)])
                engine.send_tokens(adds[0], [], FinishReason.ERROR)
                await stream.wait_finished()

        assert (await engine.receive_abort()).request_ids == adds[1:]
        assert_idle(client)


async def test_a_batch_of_prompts_is_one_scope() -> None:
    async with open_engines() as (client, [engine]):
        sinks = [[RecordingSink()], [RecordingSink(), RecordingSink()]]
        async with client.submit_all([request("a"), request("b", n=2)], sinks) as stream:
            adds = ids([await engine.receive_add() for _ in range(3)])
            assert client.num_in_flight == 1
            for number, one in enumerate(adds):
                engine.send_tokens(one, [number], FinishReason.STOP)
            await stream.wait_finished()

        assert [[sink.tokens for sink in group] for group in sinks] == [[[0]], [[1], [2]]]


async def test_a_sink_that_has_enough_ends_its_request_early() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink(stop_after=2)
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1])
            engine.send_tokens(add.internal_id, [2, 3])
            await stream.wait_finished()

        assert stream.cause is TerminalCause.STOP
        assert (await engine.receive_abort()).request_ids == [add.internal_id]
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_no_abort_when_the_engine_finished_in_the_same_breath() -> None:
    async with open_engines() as (client, [engine]):
        sinks = [RecordingSink(stop_after=1), RecordingSink(stop_after=1)]
        async with client.submit(request(n=2), sinks) as stream:
            one, other = ids([await engine.receive_add() for _ in range(2)])
            engine.send_tokens(one, [1])
            engine.send_tokens(one, [2], FinishReason.LENGTH)
            engine.send_rows([plain_row(other, [1]), plain_row(other, [2], FinishReason.STOP)])
            time.sleep(0.05)  # noqa: ASYNC251 (all of it must be there before the reader runs)
            await stream.wait_finished()

        assert [sink.tokens for sink in sinks] == [[1], [1]]
        assert await engine.hears_nothing_more()


async def test_a_sink_that_fails_ends_its_request_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_engines() as (client, [engine]):
        broken, whole = RecordingSink(fail_after=1), RecordingSink()
        async with client.submit(request("whole"), [whole]) as other:
            with pytest.raises(EngineRequestFailed):
                async with client.submit(request("broken"), [broken]) as stream:
                    a, b = ids([await engine.receive_add() for _ in range(2)])
                    engine.send_rows([plain_row(b, [1]), plain_row(a, [1])])
                    await stream.wait_finished()
            assert (await engine.receive_abort()).request_ids == [b]
            engine.send_tokens(a, [2], FinishReason.STOP)
            await other.wait_finished()

        assert whole.tokens == [1, 2]
        assert [type(error) for error in broken.errors] == [EngineRequestFailed]
        assert client.metrics.snapshot().sink_failures == 1
        assert "a bug in the pipeline" in caplog.text
        assert await engine.hears_nothing_more()
        assert_idle(client)


@pytest.mark.parametrize(
    ("error", "constraint", "expected"),
    [
        (EngineError("validation_error", "bad grammar"), None, RequestRejected),
        (EngineError("engine_paused", "paused", retryable=True), None, EngineUnavailable),
        (EngineError("internal", "no"), None, EngineRequestFailed),
        (None, None, EngineRequestFailed),
        (None, StructuredOutputs(regex="(a)"), RequestRejected),
    ],
)
async def test_the_engines_own_error_says_who_is_to_blame(
    error: EngineError | None, constraint: StructuredOutputs | None, expected: type[Exception]
) -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        one = request(sampling=SamplingParams(structured_outputs=constraint))
        with pytest.raises(expected):
            async with client.submit(one, [sink]) as stream:
                add = await engine.receive_add()
                output = EngineOutput(
                    new_token_ids=[], finish_reason=FinishReason.ERROR, error=error
                )
                engine.send_output(add.internal_id, output)
                await stream.wait_finished()

        assert sink.outputs[0].error == error
        assert stream.cause is TerminalCause.ENGINE_ERROR
        assert await engine.hears_nothing_more()


async def test_a_refused_request_is_never_seen_by_an_engine() -> None:
    async with open_engines() as (client, [engine]):
        with pytest.raises(RequestRejected):
            client.submit(replace(request(), prompt_token_ids=[1000]))
        with pytest.raises(RequestRejected):
            client.submit(replace(request(), prompt_token_ids=[1] * 1024))
        with pytest.raises(RequestRejected) as pinned:
            async with client.submit(request(data_parallel_rank=1)):
                pass

        assert pinned.value.param == "data_parallel_rank"
        assert client.metrics.snapshot().causes["refused"] == 3
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_limits_can_be_told_later() -> None:
    async with open_engines() as (client, _engines):
        client.set_limits(attrs.evolve(CONFIG.limits, vocab_size=3))

        with pytest.raises(RequestRejected):
            client.submit(request())
        assert client.limits.max_model_len == 1024


async def test_aborted_requests_end_with_what_they_have() -> None:
    async with open_engines() as (client, [engine]):
        sinks = [RecordingSink() for _ in range(3)]
        async with (
            client.submit(request("a", n=2), sinks[:2]) as first,
            client.submit(request("b"), sinks[2:]) as second,
        ):
            adds = ids([await engine.receive_add() for _ in range(3)])
            engine.send_rows([plain_row(one, [7]) for one in adds])
            await settle()
            assert client.abort(["a", "unknown"]) == 1
            await first.wait_finished()
            assert (await engine.receive_abort()).request_ids == adds[:2]
            assert client.abort([]) == 0
            assert client.abort_all() == 1
            await second.wait_finished()
            assert (await engine.receive_abort()).request_ids == adds[2:]

        assert [sink.tokens for sink in sinks] == [[7]] * 3
        assert {sink.outputs[-1].finish_reason for sink in sinks} == {FinishReason.ABORT}
        assert first.cause is TerminalCause.ADMIN_ABORTED
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_what_is_in_flight_when_the_client_closes_is_aborted() -> None:
    sink = RecordingSink()
    with trio.fail_after(5):
        async with open_engine_client(CONFIG) as client:
            engine = engine_for(client)
            await engine.join()
            await client.wait_ready()
            stream = client.submit(request(), [sink])
            await stream.__aenter__()
            add = await engine.receive_add()

        with engine:
            assert (await engine.receive_abort()).request_ids == [add.internal_id]
        assert [type(error) for error in sink.errors] == [EngineUnavailable]
        assert stream.cause is TerminalCause.SHUTDOWN
        with pytest.raises(EngineUnavailable):
            await stream.wait_finished()
        assert_idle(client)


MANY = 300
"""Choices that are sent and ended in several turns."""


async def test_very_many_choices_leave_others_their_turns() -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        begun = client.num_in_flight
        stream = await client.prepare_all([request("a", n=MANY - 2), request("b", n=2)])
        prepared = turns
        async with stream:
            sent = turns
            adds = [await engine.receive_add() for _ in range(MANY)]
            left = turns
        nursery.cancel_scope.cancel()

        assert begun == 0
        # Fewer than there are pauses: who is next is drawn by lot.
        assert prepared >= MANY // 64 - 2
        assert sent - prepared >= MANY // 64 - 1
        assert turns - left >= MANY // 64 - 1
        abort = await engine.receive()
        assert isinstance(abort, Abort)
        assert sorted(abort.request_ids) == sorted(add.internal_id for add in adds)
        assert client.metrics.snapshot().causes["client_gone"] == MANY
        assert_idle(client)


async def test_many_choices_may_end_while_others_are_still_to_be_sent() -> None:
    sinks = [RecordingSink() for _ in range(MANY)]

    async def answer(engine: FakeEngine) -> None:
        for _ in range(MANY):
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1], FinishReason.STOP)

    async with open_engines() as (client, [engine]), trio.open_nursery() as nursery:
        nursery.start_soon(answer, engine)
        stream = await client.prepare_all([request(n=MANY)], [sinks])
        async with stream:
            await stream.wait_finished()

        assert [sink.tokens for sink in sinks] == [[1]] * MANY
        assert stream.cause is TerminalCause.STOP
        assert_idle(client)


async def test_many_choices_that_are_given_up_half_sent_are_all_aborted() -> None:
    async with open_engines() as (client, [engine]):
        stream = await client.prepare_all([request(n=MANY)])
        with trio.CancelScope() as scope:
            stream.on_begun = scope.cancel
            async with stream:
                pytest.fail("it has not begun in full")

        heard = [await engine.receive() for _ in range(65)]
        assert isinstance(heard[-1], Abort)
        assert len(heard[-1].request_ids) == 64
        assert stream.begun
        assert engine.heard_nothing()
        assert_idle(client)


async def test_an_engine_that_dies_half_way_ends_all_choices() -> None:
    async with open_engines(config=attrs.evolve(CONFIG, recovery_wait=0)) as (client, [_engine]):
        stream = await client.prepare_all([request(n=MANY)])
        stream.on_begun = lambda: client.report_death("it is gone")
        with pytest.raises(EngineUnavailable, match="it is gone"):
            async with stream:
                pytest.fail("it has not begun in full")

        assert stream.finished
        assert_idle(client)


async def test_a_request_that_has_ended_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        async with open_engines() as (client, [engine]):
            sink = RecordingSink()
            kept_by_its_child = weakref.ref(sink)
            async with client.submit(request(), [sink]) as stream:
                add = await engine.receive_add()
                end = EngineOutput(new_token_ids=[1], finish_reason=FinishReason.STOP)
                engine.send_output(add.internal_id, end)
                await stream.wait_finished()
            del sink, stream, add
            await settle()

            assert kept_by_its_child() is None
    finally:
        gc.enable()


async def test_what_is_left_before_it_was_sent_is_never_sent() -> None:
    async with open_engines() as (client, [engine]):
        async with client.submit(request("left")):
            pass
        async with client.submit(request("kept")) as stream:
            add = await engine.receive_add()
            engine.send_output(
                add.internal_id,
                EngineOutput(new_token_ids=[1], finish_reason=FinishReason.STOP),
            )
            await stream.wait_finished()

        assert add.internal_id.startswith("kept")
        assert engine.heard_nothing()
        assert_idle(client)


async def test_requests_of_one_turn_arrive_in_their_order() -> None:
    async with open_engines() as (client, [engine]), AsyncExitStack() as stack:
        for number in range(40):  # more than wait for each other
            await stack.enter_async_context(client.submit(request(f"r{number}")))
        arrived = [(await engine.receive_add()).internal_id for _ in range(40)]

        assert [one.rsplit("-", 1)[0] for one in arrived] == [f"r{n}" for n in range(40)]
