"""What a frontend may rely on, true of engine stand-ins and of real engines alike."""

import math
from collections.abc import Sequence

import pytest

from tests.real_engine._process import MAX_MODEL_LEN, VOCAB_SIZE
from tests.real_engine._subject import Subject, fresh_id
from tests.simulator._frontend import RANK_0, RawFrontend, request
from vllmfront.engine import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    RepetitionDetection,
    StructuredOutputs,
)
from vllmfront.engine.wire import decode_stats

PROMPT = (300, 301, 302, 303)
UNREACHABLE = VOCAB_SIZE - 1
MANY = 600
"""Tokens that last until a call on their heels has been heard."""


def ask(prompt: Sequence[int] = PROMPT, **sampling: object) -> EngineRequest:
    return request(fresh_id(), prompt, **sampling)


async def outcome(frontend: RawFrontend, asked: EngineRequest) -> list[EngineOutput]:
    frontend.add(asked)
    return await frontend.outcome(asked.request_id)


async def test_registration_tells_version_and_limits(subject: Subject) -> None:
    async with subject.open() as frontend:
        registration = frontend.registrations[RANK_0]

        assert registration.vllm_version is not None
        assert registration.vllm_version.startswith(subject.version)
        assert registration.max_model_len == MAX_MODEL_LEN
        assert registration.max_num_seqs == 16
        assert registration.data_parallel_rank == 0
        assert registration.data_parallel_size == 1
        assert registration.dtype == "bfloat16"
        assert registration.block_size
        assert registration.num_gpu_blocks
        assert (registration.coord_store_port == 0) == subject.reports_errors


async def test_greedy_answers_repeat(subject: Subject) -> None:
    async with subject.open() as frontend:
        first = await frontend.tokens(ask(max_tokens=8))
        second = await frontend.tokens(ask(max_tokens=8))

        assert len(first) == 8
        assert first == second


async def test_a_seed_makes_sampling_repeat(subject: Subject) -> None:
    async with subject.open() as frontend:
        first = await frontend.tokens(ask(max_tokens=8, temperature=1.0, seed=7))
        second = await frontend.tokens(ask(max_tokens=8, temperature=1.0, seed=7))
        other = await frontend.tokens(ask(max_tokens=8, temperature=1.0, seed=8))

        assert first == second
        assert other != first


async def test_length_is_a_reason_to_finish(subject: Subject) -> None:
    async with subject.open() as frontend:
        outputs = await outcome(frontend, ask(max_tokens=3))

        assert sum(len(output.new_token_ids) for output in outputs) == 3
        assert [output.finish_reason for output in outputs] == [None, None, FinishReason.LENGTH]
        assert outputs[-1].stop_reason is None


async def test_the_model_length_ends_a_request(subject: Subject) -> None:
    async with subject.open() as frontend:
        prompt = [300] * (MAX_MODEL_LEN - 2)
        outputs = await outcome(frontend, ask(prompt, max_tokens=50))

        assert sum(len(output.new_token_ids) for output in outputs) == 2
        assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_a_stop_id_ends_a_request_and_is_named(subject: Subject) -> None:
    async with subject.open() as frontend:
        first, second = (await frontend.tokens(ask(max_tokens=4)))[:2]
        outputs = await outcome(frontend, ask(max_tokens=4, stop_token_ids=[second]))

        assert outputs[-1].finish_reason is FinishReason.STOP
        assert outputs[-1].stop_reason == second
        said = [token for output in outputs for token in output.new_token_ids]
        assert said == ([first, second] if first != second else [first])


async def test_eos_ends_a_request_without_being_named(subject: Subject) -> None:
    async with subject.open() as frontend:
        (first, *_) = await frontend.tokens(ask(max_tokens=4))
        outputs = await outcome(frontend, ask(max_tokens=4, eos_token_id=first))

        assert outputs[-1].finish_reason is FinishReason.STOP
        assert outputs[-1].stop_reason is None
        assert outputs[-1].new_token_ids == [first]


async def test_min_tokens_masks_the_stop_ids(subject: Subject) -> None:
    async with subject.open() as frontend:
        (first, *_) = await frontend.tokens(ask(max_tokens=4))
        said = await frontend.tokens(
            ask(max_tokens=4, min_tokens=3, stop_token_ids=[first], all_stop_token_ids=[first])
        )

        assert len(said) >= 3
        assert first not in said[:3]


async def test_a_bias_decides(subject: Subject) -> None:
    async with subject.open() as frontend:
        said = await frontend.tokens(ask(max_tokens=2, logit_bias={UNREACHABLE: 100.0}))

        assert said == [UNREACHABLE] * 2


async def test_only_allowed_ids_come(subject: Subject) -> None:
    async with subject.open() as frontend:
        said = await frontend.tokens(ask(max_tokens=4, allowed_token_ids=[400, 401]))

        assert set(said) <= {400, 401}


async def test_a_bad_word_does_not_come(subject: Subject) -> None:
    async with subject.open() as frontend:
        (first, *_) = await frontend.tokens(ask(max_tokens=1))
        said = await frontend.tokens(ask(max_tokens=4, bad_words_token_ids=[[first]]))

        assert first not in said


async def test_repetition_ends_a_request(subject: Subject) -> None:
    detection = RepetitionDetection(max_pattern_size=1, min_pattern_size=1, min_count=3)
    async with subject.open() as frontend:
        outputs = await outcome(
            frontend,
            ask(max_tokens=9, logit_bias={UNREACHABLE: 100.0}, repetition_detection=detection),
        )

        assert sum(len(output.new_token_ids) for output in outputs) == 3
        assert outputs[-1].finish_reason is FinishReason.REPETITION
        assert outputs[-1].stop_reason == "repetition_detected"


async def test_logprobs_name_the_token_then_the_likeliest(subject: Subject) -> None:
    async with subject.open() as frontend:
        outputs = await outcome(frontend, ask(max_tokens=2, logprobs=3))

        for output in outputs:
            logprobs = output.logprobs
            assert logprobs is not None
            assert [len(row) for row in logprobs.token_ids] == [4]
            assert logprobs.token_ids[0][0] == output.new_token_ids[0]
            assert logprobs.token_ids[0][1] == output.new_token_ids[0]
            assert logprobs.ranks == [1]
            best = logprobs.logprobs[0][1:]
            assert best == sorted(best, reverse=True)
            assert all(value <= 0.0 for value in best)


async def test_logprobs_of_the_whole_vocabulary(subject: Subject) -> None:
    async with subject.open() as frontend:
        (output,) = await outcome(frontend, ask(max_tokens=1, logprobs=-1))

        assert output.logprobs is not None
        ids, values = output.logprobs.token_ids[0], output.logprobs.logprobs[0]
        assert len(ids) == VOCAB_SIZE + 1
        assert sorted(ids[1:]) == list(range(VOCAB_SIZE))
        assert math.isclose(sum(map(math.exp, values[1:])), 1.0, abs_tol=0.02)


async def test_logprobs_of_named_ids(subject: Subject) -> None:
    async with subject.open() as frontend:
        outputs = await outcome(frontend, ask(max_tokens=2, logprob_token_ids=[400, 402]))

        for output in outputs:
            assert output.logprobs is not None
            assert output.logprobs.token_ids[0] == [output.new_token_ids[0], 400, 402]


async def test_prompt_logprobs_come_once_and_lack_the_first_token(subject: Subject) -> None:
    async with subject.open() as frontend:
        outputs = await outcome(frontend, ask(max_tokens=2, prompt_logprobs=2))

        scores = outputs[0].prompt_logprobs
        assert scores is not None
        assert [row[0] for row in scores.token_ids] == list(PROMPT[1:])
        assert all(len(row) == 3 for row in scores.logprobs)
        assert len(scores.ranks) == len(PROMPT) - 1
        assert outputs[1].prompt_logprobs is None


async def test_the_first_output_tells_how_the_prompt_was_computed(subject: Subject) -> None:
    async with subject.open() as frontend:
        outputs = await outcome(frontend, ask(max_tokens=2))

        stats = outputs[0].prefill_stats
        assert stats is not None
        assert stats.num_prompt_tokens == len(PROMPT)
        assert stats.num_computed_tokens + stats.num_cached_tokens == len(PROMPT)
        assert [kind for kind, _ in outputs[0].events] == [1, 2]
        assert outputs[1].prefill_stats is None
        assert not outputs[1].events


async def test_a_long_prompt_is_cached_until_the_cache_is_reset(subject: Subject) -> None:
    async with subject.open() as frontend:
        prompt = list(range(700, 1000))
        await frontend.answer(frontend.call("reset_prefix_cache", False, False))
        cold = (await outcome(frontend, ask(prompt, max_tokens=1)))[0].prefill_stats
        warm = (await outcome(frontend, ask(prompt, max_tokens=1)))[0].prefill_stats
        reset = await frontend.answer(frontend.call("reset_prefix_cache", False, False))
        again = (await outcome(frontend, ask(prompt, max_tokens=1)))[0].prefill_stats

        assert cold is not None
        assert warm is not None
        assert again is not None
        assert cold.num_cached_tokens == 0
        assert 0 < warm.num_cached_tokens < len(prompt)
        assert warm.num_cached_tokens == warm.num_local_cached_tokens
        assert reset.result is True
        assert again.num_cached_tokens == 0


async def test_nothing_more_comes_for_an_aborted_request(subject: Subject) -> None:
    async with subject.open() as frontend:
        asked = ask(max_tokens=900)
        frontend.add(asked)
        while asked.request_id not in [row[0] for row in (await frontend.batch()).rows]:
            pass
        frontend.abort(asked.request_id)
        # Outputs that are under way may still arrive; the answers tell where they end.
        await frontend.answer(frontend.call("is_sleeping"))
        await frontend.answer(frontend.call("is_sleeping"))
        rest = []
        await frontend.tokens(ask(max_tokens=3))
        last = frontend.call("is_sleeping")
        while (batch := await frontend.batch()).utility is None:
            rest += [row[0] for row in batch.rows]

        assert batch.utility.call_id == last
        assert asked.request_id not in rest


async def test_aborting_an_unknown_request_is_harmless(subject: Subject) -> None:
    async with subject.open() as frontend:
        frontend.abort("nobody", "else")

        assert len(await frontend.tokens(ask(max_tokens=2))) == 2


async def test_requests_run_together(subject: Subject) -> None:
    async with subject.open() as frontend:
        asked = [ask((300 + n, 301), max_tokens=20) for n in range(8)]
        await frontend.answer(frontend.call("pause_scheduler", "keep", False))
        for one in asked:
            frontend.add(one)
        frontend.call("resume_scheduler")
        seen: dict[str, int] = {one.request_id: 0 for one in asked}
        most = 0
        while any(count < 20 for count in seen.values()):
            batch = await frontend.batch()
            most = max(most, len(batch.rows))
            for row in batch.rows:
                seen[row[0]] += len(row[1])

        assert most == len(asked)
        assert set(seen.values()) == {20}


async def test_steps_bring_statistics_and_one_more_message_after_the_last(
    subject: Subject,
) -> None:
    async with subject.open() as frontend:
        frontend.add(ask(max_tokens=2))
        first = await frontend.batch()
        await frontend.batch()
        after = await frontend.batch()

        assert first.scheduler_stats is not None
        assert decode_stats(first.scheduler_stats).num_running_reqs == 1
        assert set(first.scheduler_stats) == set(after.scheduler_stats or ())
        assert after.rows == []
        assert decode_stats(after.scheduler_stats).num_running_reqs == 0
        assert first.weight_version == "default"


async def test_rows_have_the_length_of_their_release(subject: Subject) -> None:
    async with subject.open() as frontend:
        frontend.add(ask(max_tokens=1))
        batch = await frontend.batch()

        assert [len(row) for row in batch.rows] == [19 if subject.reports_errors else 18]


@pytest.mark.parametrize(
    ("method", "args", "result"),
    [
        ("get_supported_tasks", (), ["generate"]),
        ("is_sleeping", (), False),
        ("is_scheduler_paused", (), False),
        ("reset_mm_cache", (), None),
        ("reset_encoder_cache", (), None),
        ("reset_prefix_cache", (False, False), True),
        ("get_weight_version", (), "default"),
        ("collective_rpc", ("check_health", None, [], {}), [None]),
        ("execute_dummy_batch", (), None),
    ],
)
async def test_a_call_answers(
    subject: Subject, method: str, args: tuple[object, ...], result: object
) -> None:
    async with subject.open() as frontend:
        answer = await frontend.answer(frontend.call(method, *args))

        assert answer.failure is None
        assert answer.result == result


@pytest.mark.parametrize(
    ("method", "args", "failure"),
    [
        (
            "no_such_call",
            (),
            (
                "Call to no_such_call method failed: "
                "'EngineCoreProc' object has no attribute 'no_such_call'"
            ),
        ),
        ("is_sleeping", (1, 2), "Call to is_sleeping method failed: "),
        (
            "pause_scheduler",
            ("later", True),
            "Call to pause_scheduler method failed: Invalid pause mode: later",
        ),
        (
            "collective_rpc",
            ("no_such_method", None, [], {}),
            "Call to collective_rpc method failed: Method 'no_such_method' is not implemented.",
        ),
        (
            "release_kv_cache_memory",
            (),
            (
                "Call to release_kv_cache_memory method failed: "
                "release_kv_cache_memory() requires a completed pause first"
            ),
        ),
    ],
)
async def test_a_call_fails_with_a_text(
    subject: Subject, method: str, args: tuple[object, ...], failure: str
) -> None:
    async with subject.open() as frontend:
        answer = await frontend.answer(frontend.call(method, *args))

        assert answer.failure == failure
        assert answer.result is None


async def test_a_call_without_its_argument_fails(subject: Subject) -> None:
    async with subject.open() as frontend:
        answer = await frontend.answer(frontend.call("set_weight_version"))

        assert answer.failure is not None
        assert "missing 1 required positional argument: 'weight_version'" in answer.failure


async def test_calls_that_only_one_release_knows(subject: Subject) -> None:
    async with subject.open() as frontend:
        pause = await frontend.answer(frontend.call("pause_generation", "keep", False))
        await frontend.answer(frontend.call("resume_scheduler"))
        profile = await frontend.answer(frontend.call("profile", False, None, None, None, None))

        assert (pause.failure is None) == subject.reports_errors
        # Without a profiler the newer one fails as well, but says why.
        assert subject.reports_errors or profile.failure == "Call to profile method failed: "


async def test_a_weight_version_marks_the_outputs_after_it(subject: Subject) -> None:
    async with subject.open() as frontend:
        await frontend.answer(frontend.call("set_weight_version", "v2"))
        frontend.add(ask(max_tokens=1))
        batch = await frontend.batch()
        answer = await frontend.answer(frontend.call("get_weight_version"))
        await frontend.answer(frontend.call("set_weight_version", "default"))

        assert batch.weight_version == "v2"
        assert answer.result == "v2"


async def test_adapters_are_refused_without_support(subject: Subject) -> None:
    async with subject.open() as frontend:
        answer = await frontend.answer(frontend.call("list_loras"))

        assert answer.failure is not None


@pytest.mark.parametrize("clear_cache", [False, True])
async def test_a_pause_aborts_what_runs(subject: Subject, clear_cache: bool) -> None:
    async with subject.open() as frontend:
        asked = ask(max_tokens=900)
        frontend.add(asked)
        await frontend.batch()
        call = frontend.call("pause_scheduler", "abort", clear_cache)
        outputs = await frontend.outcome(asked.request_id)
        answer = await frontend.answer(call)
        paused = await frontend.answer(frontend.call("is_scheduler_paused"))
        sleeping = await frontend.answer(frontend.call("is_sleeping"))
        await frontend.answer(frontend.call("resume_scheduler"))
        resumed = await frontend.answer(frontend.call("is_scheduler_paused"))

        assert outputs[-1].finish_reason is FinishReason.ABORT
        assert outputs[-1].new_token_ids == []
        assert answer.failure is None
        assert answer.result is None
        assert paused.result is True
        assert sleeping.result is True
        assert resumed.result is False


async def test_a_pause_names_what_it_aborts(subject: Subject) -> None:
    async with subject.open() as frontend:
        asked = ask(max_tokens=900)
        frontend.add(asked)
        await frontend.batch()
        call = frontend.call("pause_scheduler", "abort", False)
        named = []
        while (batch := await frontend.batch()).utility is None:
            named += batch.finished_requests or []
        await frontend.answer(frontend.call("resume_scheduler"))

        assert batch.utility.call_id == call
        assert named == [asked.request_id]


async def test_a_pause_may_wait_for_what_runs(subject: Subject) -> None:
    async with subject.open() as frontend:
        asked = ask(max_tokens=40)
        frontend.add(asked)
        await frontend.batch()
        call = frontend.call("pause_scheduler", "wait", False)
        outputs = await frontend.outcome(asked.request_id)
        answer = await frontend.answer(call)
        await frontend.answer(frontend.call("resume_scheduler"))

        assert outputs[-1].finish_reason is FinishReason.LENGTH
        assert answer.failure is None


async def keep_midway(
    frontend: RawFrontend, *, clear_cache: bool
) -> tuple[EngineRequest, list[int]]:
    """Pause while a request runs; return it, and the tokens that it got so far."""
    while True:
        asked = ask(max_tokens=MANY)
        frontend.add(asked)
        said: list[int] = []
        while not said:
            said += [token for row in (await frontend.batch()).rows for token in row[1]]
        frontend.call("pause_scheduler", "keep", clear_cache)
        while (batch := await frontend.batch()).utility is None:
            said += [token for row in batch.rows for token in row[1]]
        if len(said) < MANY:
            return asked, said
        # The machine is so busy that the call came too late.
        await frontend.answer(frontend.call("resume_scheduler"))


@pytest.mark.parametrize("clear_cache", [False, True])
async def test_a_pause_may_keep_what_runs(subject: Subject, clear_cache: bool) -> None:
    async with subject.open() as frontend:
        expected = await frontend.tokens(ask(max_tokens=MANY))
        asked, said = await keep_midway(frontend, clear_cache=clear_cache)
        still = await frontend.answer(frontend.call("is_sleeping"))
        await frontend.answer(frontend.call("resume_scheduler"))
        outputs = await frontend.outcome(asked.request_id)
        said += [token for output in outputs for token in output.new_token_ids]

        assert still.result is True
        assert said == expected
        assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_what_comes_during_a_pause_waits(subject: Subject) -> None:
    async with subject.open() as frontend:
        await frontend.answer(frontend.call("pause_scheduler", "wait", False))
        asked = ask(max_tokens=2)
        frontend.add(asked)
        await frontend.answer(frontend.call("is_scheduler_paused"))
        await frontend.answer(frontend.call("resume_scheduler"))
        outputs = await frontend.outcome(asked.request_id)

        assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_what_comes_during_a_users_pause_is_refused(subject: Subject) -> None:
    async with subject.open() as frontend:
        paused = await frontend.answer(frontend.call("pause_generation", "abort", False))
        if not subject.reports_errors:
            assert paused.failure is not None
            return
        (refused,) = await outcome(frontend, ask(max_tokens=2))
        await frontend.answer(frontend.call("resume_scheduler"))
        served = await frontend.tokens(ask(max_tokens=2))

        assert refused.finish_reason is FinishReason.ERROR
        assert refused.error is not None
        assert refused.error.code == "engine_paused"
        assert refused.error.retryable
        assert len(served) == 2


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_sleep_and_waking(subject: Subject, level: int) -> None:
    async with subject.open() as frontend:
        slept = await frontend.answer(frontend.call("sleep", level, "abort"))
        sleeping = await frontend.answer(frontend.call("is_sleeping"))
        woken = await frontend.answer(frontend.call("wake_up", None))
        awake = await frontend.answer(frontend.call("is_sleeping"))

        assert slept.failure is None
        assert sleeping.result is True
        assert woken.result is True
        assert awake.result is False


async def test_waking_in_parts(subject: Subject) -> None:
    async with subject.open() as frontend:
        await frontend.answer(frontend.call("sleep", 1, "abort"))
        part = await frontend.answer(frontend.call("wake_up", ["weights"]))
        still = await frontend.answer(frontend.call("is_sleeping"))
        whole = await frontend.answer(frontend.call("wake_up", ["kv_cache"]))
        awake = await frontend.answer(frontend.call("is_sleeping"))

        assert part.result is False
        assert still.result is True
        assert whole.result is True
        assert awake.result is False


async def test_waking_the_scheduler_alone(subject: Subject) -> None:
    async with subject.open() as frontend:
        await frontend.answer(frontend.call("sleep", 0, "abort"))
        woken = await frontend.answer(frontend.call("wake_up", ["scheduling"]))
        awake = await frontend.answer(frontend.call("is_sleeping"))

        assert woken.result is True
        assert awake.result is False


async def test_a_bad_grammar_costs_its_request(subject: Subject) -> None:
    async with subject.open() as frontend:
        constraint = StructuredOutputs(grammar="root ::= ", backend="xgrammar")
        (output,) = await outcome(frontend, ask(structured_outputs=constraint))
        served = await frontend.tokens(ask(max_tokens=2))

        assert output.finish_reason is FinishReason.ERROR
        assert len(served) == 2
        if subject.reports_errors:
            assert output.error is not None
            assert output.error.code == "validation_error"
            assert not output.error.retryable
        else:
            assert output.error is None


async def test_trace_headers_come_back(subject: Subject) -> None:
    async with subject.open() as frontend:
        asked = EngineRequest(
            request_id=fresh_id(),
            prompt_token_ids=list(PROMPT),
            sampling=request(max_tokens=1).sampling,
            trace_headers={"traceparent": "00-1-2-01"},
        )
        outputs = await outcome(frontend, asked)

        assert outputs[-1].trace_headers == {"traceparent": "00-1-2-01"}
