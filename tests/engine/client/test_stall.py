"""Engines that are alive and say nothing: slow, stalled, and lost for it."""

from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.engine._helpers import (
    CONFIG,
    RecordingSink,
    assert_idle,
    open_engines,
    rank_state,
    request,
    settle,
    state_of,
)
from vllmfront.engine import EngineClient, EngineState, FinishReason, RankState
from vllmfront.engine.client.reading._stall import LOOKS, Verdict, judge
from vllmfront.errors import EngineStalled, EngineUnavailable, Reason, RequestInterrupted
from vllmfront.testing import FakeEngine

QUIET = attrs.evolve(CONFIG, stall_timeout=60.0)
STATS = {"num_running_reqs": 1, "num_waiting_reqs": 0, "kv_cache_usage": 0.5}


@pytest.mark.parametrize(
    ("state", "silent", "lose_after", "verdict"),
    [
        (RankState.READY, 59.9, None, Verdict.PATIENCE),
        (RankState.READY, 60.0, None, Verdict.STALLED),
        (RankState.STALLED, 600.0, None, Verdict.PATIENCE),
        (RankState.STALLED, 119.0, 120.0, Verdict.PATIENCE),
        (RankState.STALLED, 120.0, 120.0, Verdict.LOST),
        (RankState.READY, 30.0, 30.0, Verdict.LOST),
    ],
)
def test_what_silence_means(
    state: RankState, silent: float, lose_after: float | None, verdict: Verdict
) -> None:
    assert judge(state, silent, stall_after=60.0, lose_after=lose_after) is verdict


class Passing:
    """Lets much time pass in little, look by look."""

    def __init__(self, clock: MockClock, period: float = 20.0 / LOOKS) -> None:
        clock.rate = 1.0
        self._clock = clock
        self._period = period

    async def __call__(self, seconds: float) -> None:
        for _ in range(round(seconds / self._period)):
            self._clock.jump(self._period)
            await trio.sleep(0.0005)
        await settle()


async def test_who_says_nothing_is_stalled_until_it_speaks(
    mock_clock: MockClock,
) -> None:
    passes = Passing(mock_clock)
    async with open_engines(config=QUIET, seconds=1000) as (client, [engine]):
        sink = RecordingSink()
        async with client.submit(request(), [sink]) as stream:
            add = await engine.receive_add()
            engine.send_tokens(add.internal_id, [1])
            await passes(50)
            assert state_of(client) is EngineState.READY
            await passes(20)
            assert state_of(client) is EngineState.STALLED
            assert rank_state(client) is RankState.STALLED
            assert str(client.error).startswith("engine 0 has been silent for 6")
            assert "1 requests in flight" in str(client.error)

            engine.send_tokens(add.internal_id, [2])
            await settle()
            assert state_of(client) is EngineState.READY
            assert client.error is None
            engine.send_tokens(add.internal_id, [3], FinishReason.STOP)
            await stream.wait_finished()

        assert sink.tokens == [1, 2, 3]
        assert_idle(client)


async def test_an_idle_engine_may_be_silent_for_ever(mock_clock: MockClock) -> None:
    passes = Passing(mock_clock)
    async with open_engines(config=QUIET, seconds=1000) as (client, _engines):
        await passes(300)

        assert state_of(client) is EngineState.READY


WORK: list[dict[str, Any]] = [
    {"kv_cache_usage": 0.6},
    {"step_counter": 9},
    {"prefix_cache_stats": {"requests": 1, "queries": 5, "hits": 0}},
]


@pytest.mark.parametrize("work", WORK)
async def test_steps_that_do_something_tell_slow_from_stalled(
    mock_clock: MockClock, work: dict[str, Any]
) -> None:
    passes = Passing(mock_clock)
    async with (
        open_engines(config=QUIET, seconds=1000) as (client, [engine]),
        client.submit(request(), [RecordingSink()]),
    ):
        await engine.receive_add()
        engine.send_rows([], scheduler_stats=STATS)
        await passes(50)
        engine.send_rows([], scheduler_stats=STATS | work)
        await passes(50)

        assert state_of(client) is EngineState.READY


@pytest.mark.parametrize("gauges", [{}, {"num_running_reqs": 4}, {"num_waiting_reqs": 7}])
async def test_gauges_alone_do_not(mock_clock: MockClock, gauges: dict[str, Any]) -> None:
    passes = Passing(mock_clock)
    async with (
        open_engines(config=QUIET, seconds=1000) as (client, [engine]),
        client.submit(request(), [RecordingSink()]),
    ):
        await engine.receive_add()
        for number in range(7):
            engine.send_rows([], scheduler_stats=STATS | (gauges if number % 2 else {}))
            await passes(12)

        assert state_of(client) is EngineState.STALLED


async def test_answers_to_calls_are_no_work_on_requests(mock_clock: MockClock) -> None:
    passes = Passing(mock_clock)
    async with (
        open_engines(config=QUIET, seconds=1000) as (client, [engine]),
        client.submit(request(), [RecordingSink()]),
    ):
        await engine.receive_add()
        await passes(50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_utility, "is_sleeping")
            engine.answer(await engine.receive_utility(), result=False)
        await passes(20)

        assert state_of(client) is EngineState.STALLED


async def test_a_paused_engine_is_silent_on_purpose(mock_clock: MockClock) -> None:
    passes = Passing(mock_clock)

    async def call(client: EngineClient, engine: FakeEngine, *what: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.call_utility, *what))
            engine.answer(await engine.receive_utility())

    async with (
        open_engines(config=QUIET, seconds=1000) as (client, [engine]),
        client.submit(request(), [RecordingSink()]),
    ):
        await engine.receive_add()
        await call(client, engine, "pause_scheduler", "keep")
        await passes(200)
        assert state_of(client) is EngineState.READY
        await call(client, engine, "resume_scheduler")
        await passes(50)
        assert state_of(client) is EngineState.READY
        await passes(20)
        assert state_of(client) is EngineState.STALLED


async def test_routing_avoids_a_stalled_rank_and_takes_it_back(mock_clock: MockClock) -> None:
    passes = Passing(mock_clock)
    async with open_engines(2, QUIET, seconds=1000) as (client, engines):
        async with client.submit(request("silent", data_parallel_rank=0), [RecordingSink()]):
            add = await engines[0].receive_add()
            await passes(70)
            assert rank_state(client, 0) is RankState.STALLED
            assert state_of(client) is EngineState.READY
            async with client.submit(request("a")), client.submit(request("b")):
                for _ in range(2):
                    await engines[1].receive_add()
                engines[0].send_tokens(add.internal_id, [1])
                await settle()
                async with client.submit(request("c")):
                    assert (await engines[0].receive_add()).request.request_id == "c"

        assert_idle(client)


async def test_new_requests_wait_for_a_stalled_engine_and_those_who_leave_are_told_of(
    mock_clock: MockClock,
) -> None:
    passes = Passing(mock_clock)
    config = attrs.evolve(QUIET, recovery_wait=20.0)
    async with open_engines(config=config, seconds=1000) as (client, [engine]):
        async with client.submit(request("silent"), [RecordingSink()]):
            add = await engine.receive_add()
            await passes(70)
            refused: list[EngineUnavailable] = []

            async def ask() -> None:
                try:
                    async with client.submit(request("new")):
                        pass
                except EngineUnavailable as error:
                    refused.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await settle()
                assert client.num_waiting == 1
                await passes(30)
            assert [error.reason for error in refused] == [Reason.STALLED]

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await settle()
                engine.send_tokens(add.internal_id, [1])
                assert (await engine.receive_add()).request.request_id == "new"
        assert len(refused) == 1
        assert_idle(client)


async def test_a_stalled_engine_that_has_nothing_left_is_asked_whether_it_lives(
    mock_clock: MockClock,
) -> None:
    passes = Passing(mock_clock)
    async with open_engines(config=QUIET, seconds=1000) as (client, [engine]):
        async with client.submit(request()):
            await engine.receive_add()
            await passes(70)
        await engine.receive_abort()
        await passes(20)
        probe = await engine.receive_utility()
        assert probe.method == "is_sleeping"
        assert await engine.hears_nothing_more(), "one question is enough"
        assert state_of(client) is EngineState.STALLED
        await passes(30)
        again = await engine.receive_utility()
        assert again.method == "is_sleeping", "the answer may have been lost"
        engine.answer(again, result=False)
        await settle()

        assert state_of(client) is EngineState.READY


async def test_silence_that_is_too_long_loses_the_engine(mock_clock: MockClock) -> None:
    passes = Passing(mock_clock)
    config = attrs.evolve(QUIET, stall_restart=120.0, recovery_wait=0)
    async with open_engines(config=config, seconds=1000) as (client, [engine]):
        with pytest.raises(RequestInterrupted, match="silent for 12"):
            async with client.submit(request(), [RecordingSink()]) as stream:
                await engine.receive_add()
                await passes(100)
                assert state_of(client) is EngineState.STALLED
                await passes(30)
                await stream.wait_finished()

        error = await client.wait_lost()
        assert isinstance(error, EngineStalled)
        assert "more than --engine-stall-restart allows" in str(error)
        assert state_of(client) is EngineState.RECOVERING
        assert_idle(client)


async def test_time_that_we_lost_ourselves_is_no_engines_silence(mock_clock: MockClock) -> None:
    mock_clock.rate = 1.0
    async with (
        open_engines(config=QUIET, seconds=1000) as (client, [engine]),
        client.submit(request(), [RecordingSink()]),
    ):
        await engine.receive_add()
        await Passing(mock_clock)(10)
        mock_clock.jump(500)
        await settle()

        assert state_of(client) is EngineState.READY
