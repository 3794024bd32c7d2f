"""Streams that go on elsewhere, as if nothing had happened."""

import math
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
    replaced,
    request,
    settle,
    wait_lost,
)
from vllmfront.engine import (
    SCHEDULED,
    EngineClient,
    EngineOutput,
    FinishReason,
    Logprobs,
    PrefillStats,
    RequestStream,
    SamplingParams,
    TerminalCause,
)
from vllmfront.engine.metrics import HistogramValue
from vllmfront.errors import RequestInterrupted
from vllmfront.testing import FakeEngine

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, min_tokens=4, repetition_penalty=1.2)


class Run:
    """A stream in a task of its own."""

    def __init__(self, nursery: trio.Nursery, client: EngineClient, **fields: Any) -> None:
        fields.setdefault("sampling", GREEDY)
        self.sink = fields.pop("sink", None) or RecordingSink()
        self.stream: RequestStream = client.submit(request(**fields), [self.sink])
        self.error: Exception | None = None
        self.begun = 0
        self.stream.on_begun = self._note
        nursery.start_soon(self._run)

    def _note(self) -> None:
        self.begun += 1

    async def _run(self) -> None:
        try:
            async with self.stream:
                await self.stream.wait_finished()
        except RequestInterrupted as error:
            self.error = error


async def lose(client: EngineClient, engine: FakeEngine, rank: int = 0) -> None:
    engine.close()
    await wait_lost(client, rank)
    await settle()


def first_output(token: int, cached: int = 0) -> EngineOutput:
    stats = PrefillStats(num_prompt_tokens=3, num_computed_tokens=3, num_cached_tokens=cached)
    return EngineOutput(new_token_ids=[token], prefill_stats=stats)


async def test_a_stream_goes_on_with_what_it_has() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        run = Run(nursery, client)
        add = await old.receive_add()
        old.send_output(add.internal_id, first_output(10, cached=2))
        old.send_tokens(add.internal_id, [11])
        old.send_tokens(add.internal_id, [12])
        await settle()
        async with replaced(client, old) as new:
            again = await new.receive_add()
            old_late = add.internal_id
            new.send_tokens(old_late, [99])
            new.send_output(again.internal_id, first_output(13, cached=6))
            new.send_tokens(again.internal_id, [14])
            new.send_tokens(again.internal_id, [15], FinishReason.LENGTH)
            await settle()
            assert await new.hears_nothing_more()

        assert again.internal_id != add.internal_id
        assert again.request.prompt_token_ids == [1, 2, 3, 10, 11, 12]
        sampling = again.request.sampling
        assert sampling is not None
        assert (sampling.max_tokens, sampling.min_tokens) == (3, 1)
        assert sampling.repetition_penalty == pytest.approx(1.2)
        assert run.sink.tokens == [10, 11, 12, 13, 14, 15]
        assert [one.prefill_stats for one in run.sink.outputs if one.prefill_stats] == [
            first_output(10, cached=2).prefill_stats
        ]
        assert run.begun == 1
        assert run.stream.cause is TerminalCause.LENGTH
        assert run.stream.num_generated_tokens == 6
        snapshot = client.metrics.snapshot()
        assert (snapshot.resent_requests, snapshot.continued_requests) == (0, 1)
        assert snapshot.causes["length"] == 1
        assert snapshot.unknown_outputs == 1
        assert_idle(client)


async def test_a_stream_goes_on_twice_if_need_be() -> None:
    async with open_engines() as (client, [first]), trio.open_nursery() as nursery:
        run = Run(nursery, client)
        add = await first.receive_add()
        first.send_tokens(add.internal_id, [10])
        await settle()
        async with replaced(client, first) as second:
            add = await second.receive_add()
            second.send_tokens(add.internal_id, [11, 12])
            await settle()
            async with replaced(client, second) as third:
                add = await third.receive_add()
                third.send_tokens(add.internal_id, [13], FinishReason.STOP)
                await settle()

        assert add.request.prompt_token_ids == [1, 2, 3, 10, 11, 12]
        assert run.sink.tokens == [10, 11, 12, 13]
        assert run.stream.cause is TerminalCause.STOP


async def test_another_rank_goes_on_at_once() -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        run = Run(nursery, client)
        add = await engines[0].receive_add()
        engines[0].send_tokens(add.internal_id, [10])
        await settle()
        engines[0].close()
        again = await engines[1].receive_add()
        engines[1].send_tokens(again.internal_id, [11], FinishReason.STOP)
        await settle()

        assert run.sink.tokens == [10, 11]
        assert_idle(client)


async def test_tokens_that_wait_to_be_merged_are_part_of_what_it_has() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        run = Run(nursery, client)
        add = await old.receive_add()
        [child] = run.stream.children
        old.send_tokens(add.internal_id, [10])
        await settle()
        child.pending = [11, 12]
        async with replaced(client, old) as new:
            again = await new.receive_add()
            new.send_tokens(again.internal_id, [13], FinishReason.STOP)
            await settle()

        assert again.request.prompt_token_ids == [1, 2, 3, 10, 11, 12]
        assert run.sink.tokens == [10, 11, 12, 13]


async def test_a_sink_may_do_what_it_likes_with_its_lists() -> None:
    class Greedy(RecordingSink):
        def on_tokens(self, token_ids: list[int]) -> bool:
            done = super().on_tokens(list(token_ids))
            token_ids.clear()
            return done

    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        Run(nursery, client, sink=Greedy())
        add = await old.receive_add()
        old.send_tokens(add.internal_id, [10])
        old.send_tokens(add.internal_id, [11])
        await settle()
        async with replaced(client, old) as new:
            again = await new.receive_add()
            new.send_tokens(again.internal_id, [13], FinishReason.STOP)
            await settle()

        assert again.request.prompt_token_ids == [1, 2, 3, 10, 11]


async def test_logprobs_of_what_goes_on_are_passed_as_they_come() -> None:
    rows = [Logprobs([[token]], [[-0.5]], [1]) for token in (10, 11)]
    sampling = SamplingParams(temperature=0.0, max_tokens=6, logprobs=0, prompt_logprobs=0)
    prompt = Logprobs([[2], [3]], [[-1.0], [-2.0]], [1, 1])
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        run = Run(nursery, client, sampling=sampling)
        add = await old.receive_add()
        old.send_output(
            add.internal_id,
            EngineOutput(new_token_ids=[10], logprobs=rows[0], prompt_logprobs=prompt),
        )
        await settle()
        async with replaced(client, old) as new:
            again = await new.receive_add()
            new.send_output(
                again.internal_id,
                EngineOutput(new_token_ids=[11], logprobs=rows[1], finish_reason=FinishReason.STOP),
            )
            await settle()

        assert again.request.sampling is not None
        assert again.request.sampling.logprobs == 0
        assert again.request.sampling.prompt_logprobs is None
        assert [one.logprobs for one in run.sink.outputs] == rows
        assert [one.prompt_logprobs for one in run.sink.outputs] == [prompt, None]


async def test_one_that_has_all_its_tokens_ends_as_its_engine_would_have_ended_it() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        run = Run(nursery, client)
        add = await old.receive_add()
        old.send_tokens(add.internal_id, [10, 11, 12, 13, 14, 15])
        await settle()
        async with replaced(client, old) as new:
            await settle()
            assert await new.hears_nothing_more()

        assert run.sink.outputs == [
            EngineOutput(new_token_ids=[], finish_reason=FinishReason.LENGTH)
        ]
        assert run.stream.cause is TerminalCause.LENGTH
        assert_idle(client)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(seed=5, max_tokens=6),
        SamplingParams(presence_penalty=0.5, max_tokens=6),
    ],
)
async def test_what_cannot_go_on_ends_with_an_error_that_invites_another_try(
    sampling: SamplingParams,
) -> None:
    async with open_engines(2) as (client, engines), trio.open_nursery() as nursery:
        run = Run(nursery, client, sampling=sampling)
        add = await engines[0].receive_add()
        engines[0].send_tokens(add.internal_id, [10])
        await settle()
        await lose(client, engines[0])

        assert isinstance(run.error, RequestInterrupted)
        assert "cannot be continued elsewhere" in str(run.error)
        assert run.sink.tokens == [10]
        assert [type(error) for error in run.sink.errors] == [RequestInterrupted]
        assert run.stream.cause is TerminalCause.ENGINE_DIED
        assert await engines[1].hears_nothing_more()
        assert_idle(client)


async def test_the_error_says_in_one_sentence_what_was_lost() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        run = Run(nursery, client, sampling=SamplingParams(seed=5, max_tokens=6))
        add = await old.receive_add()
        old.send_tokens(add.internal_id, [10])
        await settle()
        client.report_death("The engine process was killed.")
        await settle()

        assert str(run.error) == (
            "The request was interrupted: The engine process was killed, "
            "and its answer cannot be continued elsewhere"
        )


async def test_one_of_several_choices_cannot_go_on() -> None:
    async with open_engines(2) as (client, engines):
        sinks = [RecordingSink(), RecordingSink()]
        with pytest.raises(RequestInterrupted):
            async with client.submit(request(n=2, data_parallel_rank=0), sinks) as stream:
                add = await engines[0].receive_add()
                engines[0].send_tokens(add.internal_id, [10])
                await settle()
                engines[0].close()
                await stream.wait_finished()

        assert_idle(client)


async def test_an_operator_can_switch_it_off() -> None:
    config = attrs.evolve(CONFIG, continuation=False)
    async with open_engines(2, config) as (client, engines), trio.open_nursery() as nursery:
        run = Run(nursery, client)
        add = await engines[0].receive_add()
        assert run.stream.children[0].kept is None
        engines[0].send_tokens(add.internal_id, [10])
        await settle()
        await lose(client, engines[0])

        assert isinstance(run.error, RequestInterrupted)


@pytest.mark.parametrize(("version", "goes_on"), [("default", True), ("step-7", False)])
async def test_only_the_same_weights_go_on(version: str, goes_on: bool) -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        run = Run(nursery, client)
        add = await old.receive_add()
        old.send_rows([[add.internal_id, [10]]], weight_version=version)
        await settle()
        async with replaced(client, old) as new:
            if goes_on:
                again = await new.receive_add()
                new.send_tokens(again.internal_id, [11], FinishReason.STOP)
            await settle()

        assert run.sink.tokens == ([10, 11] if goes_on else [10])
        assert (run.error is None) is goes_on
        assert goes_on or "weights" in str(run.error)
        assert_idle(client)


async def test_a_stop_string_that_the_last_words_complete_ends_it() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        run = Run(nursery, client, sink=RecordingSink(stop_after=3))
        add = await old.receive_add()
        old.send_tokens(add.internal_id, [10])
        await settle()
        run.stream.children[0].pending = [11, 12]
        async with replaced(client, old) as new:
            assert await new.hears_nothing_more()

        assert run.stream.cause is TerminalCause.STOP
        assert_idle(client)


def histogram(client: EngineClient, name: str) -> HistogramValue:
    [family] = [one for one in client.metrics.snapshot().families if one.name == name]
    [sample] = family.samples
    assert isinstance(sample.value, HistogramValue)
    return sample.value


async def test_it_counts_as_one_request_across_two_clocks() -> None:
    async with open_engines() as (client, [old]), trio.open_nursery() as nursery:
        run = Run(nursery, client)
        add = await old.receive_add()
        old.time = 1000.0
        events = ((SCHEDULED, 999.5),)
        old.send_output(add.internal_id, EngineOutput(new_token_ids=[10], events=events))
        await settle()
        old.time = 1002.0
        old.send_tokens(add.internal_id, [11])
        await settle()
        async with replaced(client, old) as new:
            again = await new.receive_add()
            new.time = 5.0
            new.send_output(
                again.internal_id, EngineOutput(new_token_ids=[12], events=((SCHEDULED, 4.5),))
            )
            await settle()
            new.time = 6.0
            new.send_tokens(again.internal_id, [13], FinishReason.STOP)
            await settle()

        assert run.stream.cause is TerminalCause.STOP
        assert histogram(client, "time_to_first_token_seconds").count == 1
        assert histogram(client, "e2e_request_latency_seconds").count == 1
        assert histogram(client, "request_generation_tokens").sum == 4
        assert histogram(client, "request_prompt_tokens").sum == 3
        gaps = histogram(client, "inter_token_latency_seconds")
        assert gaps.count == 3
        # 2 s before, 1 s after, and as long as the engine was gone, by our clock.
        assert 3.0 < gaps.sum < 8.0
        decode = histogram(client, "request_decode_time_seconds").sum
        assert decode == pytest.approx(gaps.sum)
        inference = histogram(client, "request_inference_time_seconds").sum
        assert inference == pytest.approx(decode + 0.5)


async def test_one_that_nobody_goes_on_with_has_marks_that_make_sense() -> None:
    async with open_engines() as (client, [old]):
        async with client.submit(request(sampling=GREEDY), [RecordingSink()]) as stream:
            add = await old.receive_add()
            old.time = 1000.0
            old.send_tokens(add.internal_id, [10])
            await settle()
            old.time = 1001.0
            old.send_tokens(add.internal_id, [11])
            await settle()
            old.close()
            await wait_lost(client)

        assert stream.cause is TerminalCause.CLIENT_GONE
        assert stream.children[0].record.last_token_at == 1001.0
        assert histogram(client, "request_decode_time_seconds").sum == 1.0


async def test_a_deadline_goes_on_with_it(mock_clock: MockClock) -> None:
    mock_clock.rate = 1.0
    async with open_engines(seconds=100) as (client, [old]):
        deadline = trio.current_time() + 50
        sink = RecordingSink()
        async with client.submit(request(sampling=GREEDY, deadline=deadline), [sink]) as stream:
            add = await old.receive_add()
            old.send_tokens(add.internal_id, [10])
            await settle()
            async with replaced(client, old) as new:
                again = await new.receive_add()
                assert client.snapshot().deadlines == 1
                mock_clock.jump(51)
                abort = await new.receive_abort()
                assert abort.request_ids == [again.internal_id]

        assert stream.cause is TerminalCause.TIMED_OUT
        assert math.isfinite(stream.children[0].record.last_token_at)
        assert_idle(client)
