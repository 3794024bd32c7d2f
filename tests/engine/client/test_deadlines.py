"""Requests that must have ended by a certain time."""

import math
from typing import cast

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    assert_idle,
    open_engines,
    request,
    settle,
    wait_lost,
)
from vllmfront.engine import FinishReason, TerminalCause
from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._deadlines import Deadlines
from vllmfront.errors import RequestTimedOut


class Watched:
    """The part of a child that deadlines know."""

    deadline_number = 0


def watched(deadlines: Deadlines, deadline: float) -> Child:
    child = cast("Child", Watched())
    deadlines.add(child, deadline)
    return child


def test_those_whose_time_is_up_are_taken_once() -> None:
    deadlines = Deadlines()
    late, soon, ended = (watched(deadlines, when) for when in (9.0, 3.0, 2.0))
    deadlines.forget(ended)

    assert deadlines.next_due() == 2.0, "the entry stays"
    assert deadlines.take_due(2.5) == []
    assert deadlines.take_due(9.0) == [soon, late]
    assert deadlines.take_due(9.0) == []
    assert deadlines.next_due() == math.inf
    assert len(deadlines) == 0


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=400))
def test_ended_requests_never_fill_the_heap(requests: list[tuple[float, bool]]) -> None:
    deadlines, present = Deadlines(), set[Child]()
    for deadline, ends in requests:
        child = watched(deadlines, deadline)
        if ends:
            deadlines.forget(child)
        else:
            present.add(child)

        assert len(deadlines._heap) <= 2 * len(present) + 64
    assert set(deadlines.take_due(math.inf)) == present


async def test_a_running_request_is_aborted_when_its_time_is_up() -> None:
    async with open_engines() as (client, [engine]):
        sink = RecordingSink()
        asked = request(deadline=trio.current_time() + 0.1)
        with pytest.raises(RequestTimedOut, match="deadline"):
            async with client.submit(asked, [sink]) as stream:
                add = await engine.receive_add()
                engine.send_tokens(add.internal_id, [1])
                await stream.wait_finished()

        assert sink.tokens == [1]
        assert [type(error) for error in sink.errors] == [RequestTimedOut]
        assert stream.cause is TerminalCause.TIMED_OUT
        assert (await engine.receive_abort()).request_ids == [add.internal_id]
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_all_choices_time_out_together() -> None:
    async with open_engines() as (client, [engine]):
        asked = request(n=3, deadline=trio.current_time() + 0.1)
        with pytest.raises(RequestTimedOut):
            async with client.submit(asked, [RecordingSink() for _ in range(3)]) as stream:
                adds = [await engine.receive_add() for _ in range(3)]
                engine.send_tokens(adds[0].internal_id, [1], FinishReason.STOP)
                await stream.wait_finished()

        abort = await engine.receive_abort()
        assert abort.request_ids == [add.internal_id for add in adds[1:]]
        assert client.metrics.snapshot().causes["timed_out"] == 2
        assert_idle(client)


async def test_a_request_that_ends_in_time_is_let_alone() -> None:
    async with open_engines() as (client, [engine]):
        soon = request("soon", deadline=trio.current_time() + 0.1)
        later = request("later", deadline=trio.current_time() + 60)
        async with client.submit(later), client.submit(soon) as stream:
            await engine.receive_add()
            add = await engine.receive_add()
            assert client.snapshot().deadlines == 2
            engine.send_tokens(add.internal_id, [1], FinishReason.STOP)
            assert [output.new_token_ids async for output in stream] == [[1]]
            assert client.snapshot().deadlines == 1
            await trio.sleep(0.15)

        assert stream.cause is TerminalCause.STOP
        assert client.metrics.snapshot().causes["timed_out"] == 0
        assert_idle(client)


async def test_one_that_is_late_already_is_never_sent() -> None:
    async with open_engines() as (client, [engine]):
        with pytest.raises(RequestTimedOut):
            async with client.submit(request(deadline=trio.current_time())):
                pass

        assert client.metrics.snapshot().causes["timed_out"] == 1
        assert await engine.hears_nothing_more()
        assert_idle(client)


async def test_waiting_for_an_engine_counts(mock_clock: MockClock) -> None:
    mock_clock.rate = 1.0
    config = attrs.evolve(CONFIG, recovery_wait=600.0)
    async with open_engines(config=config, seconds=100) as (client, [engine]):
        engine.close()
        await wait_lost(client)
        refused: list[str] = []

        async def ask() -> None:
            with pytest.raises(RequestTimedOut):
                async with client.submit(request(deadline=trio.current_time() + 50)):
                    pass
            refused.append("timed out")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await settle()
            assert client.num_waiting == 1
            mock_clock.jump(49)
            await settle()
            assert refused == []
            mock_clock.jump(1)

        assert refused == ["timed out"]
        assert client.metrics.snapshot().causes["timed_out"] == 1
        assert_idle(client)
