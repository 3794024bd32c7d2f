"""What an engine may send that makes no sense, and what that costs."""

from contextlib import AsyncExitStack
from typing import Any

import msgpack
import pytest
import trio
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.engine._helpers import (
    RecordingSink,
    assert_idle,
    engine_for,
    ids,
    open_engines,
    request,
    settle,
)
from vllmfront.engine import (
    EngineState,
    FinishReason,
    RankState,
    SamplingParams,
    TerminalCause,
)
from vllmfront.engine.client.reading._garble import MOST_GARBLED
from vllmfront.engine.wire import DEAD_FRAME, plain_row
from vllmfront.errors import EngineDied, EngineRequestFailed, RequestInterrupted

MESSAGES: list[list[bytes]] = [
    [b""],
    [b"\xc1"],
    [b"ENGINE_CORE_DEAF"],
    [msgpack.packb(5)],
    [msgpack.packb({"outputs": []})],
    [msgpack.packb(["zero", []])],
    [msgpack.packb([0, {}])],
    [msgpack.packb([0, [], None, "now"])],
    [msgpack.packb([0, [], None, 0.0, [1]])],
    [msgpack.packb([0, [], None, 0.0, None, 7])],
]
ROWS: list[Any] = [
    None,
    [],
    5,
    {"request_id": "r"},
    [7, [1]],
    [["r"], [1]],
    [None, [1]],
]


@pytest.mark.parametrize("frames", MESSAGES)
async def test_after_a_malformed_message_requests_go_on_from_what_was_read(
    frames: list[bytes],
) -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [11])
            engine.send_frames(frames)  # it may have said 12
            engine.send_tokens(add.internal_id, [13])
            abort = await engine.receive_abort()
            again = await engine.receive_add()
            engine.send_tokens(again.internal_id, [12, 13], FinishReason.STOP)
            await stream.wait_finished()

        assert abort.request_ids == [add.internal_id]
        assert again.request.prompt_token_ids == [*add.request.prompt_token_ids, 11]
        assert sink.tokens == [11, 12, 13]
        assert client.state is EngineState.READY
        assert client.metrics.snapshot().malformed_messages == 1
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_what_cannot_go_on_after_a_malformed_message_is_interrupted() -> None:
    seeded = SamplingParams(max_tokens=9, temperature=1.0, seed=7)
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        with pytest.raises(RequestInterrupted, match="engine 0 sent something unreadable"):
            async with client.submit(request(sampling=seeded), [sink]) as stream:
                add = await engine.receive_add()
                engine.send_tokens(add.internal_id, [11])
                engine.send_frames([b"\xc1"])
                await stream.wait_finished()

        assert sink.tokens == [11]
        assert (await engine.receive_abort()).request_ids == [add.internal_id]
        assert_idle(client)


async def test_an_engine_that_sends_nothing_readable_is_lost_with_that_reason() -> None:
    async with open_engines() as (client, [engine]):
        for _ in range(MOST_GARBLED):
            engine.send_frames([b"\xc1"])
        await settle()
        assert client.state is EngineState.READY
        engine.send_frames([b"\xc1"])
        error = await client.wait_lost()

        assert isinstance(error, EngineDied)
        assert str(error) == "engine 0 sent 17 unreadable messages in a row"
        assert client.snapshot().ranks[0].state is RankState.DEAD


async def test_an_engine_is_not_blamed_for_what_its_predecessor_sent() -> None:
    async with open_engines() as (client, [first]):
        for _ in range(MOST_GARBLED):
            first.send_frames([b"\xc1"])
        first.report_death()
        with trio.fail_after(5):
            await client.wait_lost()
        with engine_for(client) as second, trio.fail_after(5):
            await second.join()
            await client.wait_ready()
            for _ in range(MOST_GARBLED):
                second.send_frames([b"\xc1"])
            await settle()

            assert client.state is EngineState.READY


async def test_a_malformed_message_concerns_its_engine_alone() -> None:
    async with open_engines(2) as (client, [one, other]):
        sinks = [RecordingSink(), RecordingSink()]
        async with (
            client.submit(request("a", data_parallel_rank=0), [sinks[0]]) as first,
            client.submit(request("b", data_parallel_rank=1), [sinks[1]]) as second,
        ):
            adds = [await one.receive_add(), await other.receive_add()]
            one.send_tokens(adds[0].internal_id, [1])
            other.send_tokens(adds[1].internal_id, [1])
            await settle()
            one.send_frames([b"\xc1"])
            await one.receive_abort()
            again = await one.receive_add()
            one.send_tokens(again.internal_id, [2], FinishReason.STOP)
            other.send_tokens(adds[1].internal_id, [2], FinishReason.STOP)
            await first.wait_finished()
            await second.wait_finished()

        assert [sink.tokens for sink in sinks] == [[1, 2], [1, 2]]
        assert await other.hears_nothing_more()


async def test_a_malformed_message_of_one_that_never_spoke_may_be_of_each_of_those() -> None:
    async with open_engines(3) as (client, engines):
        sinks = [RecordingSink() for _ in engines]
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(
                    client.submit(request(f"r{rank}", data_parallel_rank=rank), [sink])
                )
                for rank, sink in enumerate(sinks)
            ]
            adds = [await engine.receive_add() for engine in engines]
            engines[0].send_tokens(adds[0].internal_id, [1])
            await settle()
            engines[1].send_frames([b"\xc1"])
            for rank in (1, 2):
                await engines[rank].receive_abort()
                adds[rank] = await engines[rank].receive_add()
            for engine, add in zip(engines, adds, strict=True):
                engine.send_tokens(add.internal_id, [2], FinishReason.STOP)
            for stream in streams:
                await stream.wait_finished()

        assert [sink.tokens for sink in sinks] == [[1, 2], [2], [2]]


@pytest.mark.parametrize("row", ROWS)
async def test_a_row_for_nobody_costs_that_row(row: Any) -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_rows([plain_row(add.internal_id, [1]), row])
            engine.send_rows([row, plain_row(add.internal_id, [2], FinishReason.STOP)])
            await stream.wait_finished()

        assert sink.tokens == [1, 2]
        snapshot = client.metrics.snapshot()
        assert snapshot.malformed_outputs + snapshot.unknown_outputs == 2


@pytest.mark.parametrize("tail", [["x"], [None, None, None, "stop"], [None, None, 5]])
async def test_a_malformed_row_costs_its_request(tail: list[Any]) -> None:
    async with open_engines() as (client, [engine]):
        other = RecordingSink()
        async with client.submit(request("other"), [other]) as unharmed:
            sink = RecordingSink()
            with pytest.raises(EngineRequestFailed, match="unusable"):
                async with client.submit(request("bad"), [sink]) as stream:
                    good, bad = ids([await engine.receive_add() for _ in range(2)])
                    engine.send_rows([plain_row(bad, [1]), plain_row(good, [1])])
                    engine.send_rows([[bad, [2], *tail], plain_row(good, [2])])
                    await stream.wait_finished()
            assert (await engine.receive_abort()).request_ids == [bad]
            engine.send_tokens(good, [3], FinishReason.STOP)
            await unharmed.wait_finished()

        assert sink.tokens == [1]
        assert [type(error) for error in sink.errors] == [EngineRequestFailed]
        assert other.tokens == [1, 2, 3]
        assert stream.cause is TerminalCause.PROTOCOL_ERROR
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_a_request_that_the_engine_has_dropped_does_not_hang() -> None:
    async with open_engines() as (client, [engine]):
        with pytest.raises(EngineRequestFailed, match="dropped"):
            async with client.submit(request(), [RecordingSink()]) as stream:
                add = await engine.receive_add()
                engine.send_rows([], finished_requests=[add.internal_id, "unknown"])
                await stream.wait_finished()

        assert_idle(client)


async def test_finished_ids_say_nothing_new_about_finished_requests() -> None:
    async with open_engines() as (client, [engine]):
        async with client.submit(request(), [RecordingSink()]) as stream:
            add = await engine.receive_add()
            row = plain_row(add.internal_id, [1], FinishReason.STOP)
            engine.send_rows([row], finished_requests=[add.internal_id])
            await stream.wait_finished()

        assert stream.cause is TerminalCause.STOP


async def test_unknown_ranks_are_refused_where_there_are_several() -> None:
    async with open_engines(2) as (client, [engine, _other]):
        engine.rank = 9
        engine.send_rows([])
        await settle()

        assert client.metrics.snapshot().malformed_messages == 1


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(frames=st.lists(st.binary(max_size=40), min_size=1, max_size=3))
async def test_any_bytes_leave_the_client_working(frames: list[bytes]) -> None:
    assume(frames[0] != DEAD_FRAME)
    async with open_engines() as (client, [engine]):
        async with client.submit(request()) as stream:
            add = await engine.receive_add()
            engine.send_frames(frames)
            await settle()
            if client.metrics.snapshot().malformed_messages:
                await engine.receive_abort()
                add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [2], FinishReason.STOP)
            outputs = [output.new_token_ids async for output in stream]

        assert outputs == [[2]]
