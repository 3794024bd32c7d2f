"""Every request ends once: on the wire, in one counter and, where somebody cares, in one line."""

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.api.openai._harness import (
    CHAT,
    COMPLETIONS,
    Api,
    chat,
    completion,
    open_api,
)
from tests.api.openai._told import error_of, lines, only_line, serve_alike
from vllmfront.api.http import HttpRequest
from vllmfront.api.metrics import InferenceMetrics
from vllmfront.api.openai import ServiceOptions
from vllmfront.api.openai._call import InferenceCall
from vllmfront.api.openai._ends import QUIET_SECONDS, RequestEnds
from vllmfront.api.openai._gate import Gate
from vllmfront.engine import EngineError, FinishReason, RequestStream
from vllmfront.errors import EngineUnavailable, Overloaded, Reason
from vllmfront.models import ModelDescription
from vllmfront.text import Tokenizer


@pytest.mark.parametrize(
    ("reason", "cause", "name"),
    [
        (FinishReason.STOP, "stop", "stop"),
        (FinishReason.LENGTH, "length", "length"),
        (FinishReason.REPETITION, "repetition", "repetition"),
    ],
)
async def test_ends_of_their_own_are_counted_and_not_told(
    api: Api,
    stream: bool,
    known: bool,
    reason: FinishReason,
    cause: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    if known:
        await serve_alike(api, stream=stream)
    call = api.post(CHAT, chat(stream=stream))
    api.say(await api.next_add(), [500], reason)
    writer = await call.finished()

    answer = writer.events[-2] if stream else writer.json
    assert answer["choices"][0]["finish_reason"] == name
    assert api.ends == {cause: 1}
    assert lines(caplog) == []


async def test_they_are_told_where_an_operator_wants_it(
    model: ModelDescription, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_api(model, tokenizer, ServiceOptions(log_requests=True)) as api:
        call = api.post(CHAT, chat())
        api.say(await api.next_add(), [500], FinishReason.LENGTH)
        await call.finished()

    level, text = only_line(caplog, "length")
    assert level == logging.INFO
    assert "output_tokens=1" in text


@pytest.mark.parametrize("n", [1, 4])
async def test_a_request_with_several_choices_ends_once(
    api: Api, stream: bool, n: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    call = api.post(CHAT, chat(stream=stream, n=n, temperature=1))
    for _ in range(n):
        api.say(await api.next_add(), [500])
    await wait_all_tasks_blocked()
    api.client.abort_all()
    writer = await call.finished()

    assert writer.status == 200
    assert api.ends == {"admin_aborted": 1}
    assert api.client.metrics.snapshot().causes["admin_aborted"] == n
    level, _ = only_line(caplog, "admin_aborted")
    assert level == logging.INFO


@pytest.mark.parametrize(
    ("words", "cause", "level"),
    [
        ("client gone", "client_gone", logging.INFO),
        ("client stalled", "client_stalled", logging.WARNING),
        ("shutdown", "shutdown", logging.WARNING),
    ],
)
async def test_a_connection_that_ends_says_why(
    api: Api,
    stream: bool,
    known: bool,
    words: str,
    cause: str,
    level: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    if known:
        await serve_alike(api, stream=stream)
    call = api.post(CHAT, chat(stream=stream))
    await api.next_add()
    call.leave(words)
    writer = await call.finished()
    await api.engine.receive_abort()

    assert api.ends == {cause: 1}
    assert only_line(caplog, cause)[0] == level
    if cause == "shutdown":
        found = error_of(writer, stream=stream)
        assert (found["code"], found["reason"]) == (503, "draining")
    else:
        assert not writer.finished


@pytest.mark.parametrize(("words", "cause"), [("client gone", "client_gone"), ("shutdown",) * 2])
async def test_so_does_one_that_ends_before_its_request_was_sent(
    api: Api, words: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    call = api.post(CHAT, chat("word " * 400_000))
    await wait_all_tasks_blocked()
    call.leave(words)
    writer = await call.finished()

    assert api.ends == {cause: 1}
    assert "request_id=- engine_request_ids=-" in only_line(caplog, cause)[1]
    assert writer.status == (503 if cause == "shutdown" else 0)


@pytest.mark.parametrize(
    ("problem", "cause", "code"),
    [
        (EngineError("oops", "details"), "engine_error", 500),
        (EngineError("validation_error", "bad grammar"), "engine_error", 400),
        (EngineError("engine_paused", "paused", retryable=True), "engine_error", 503),
    ],
)
async def test_engines_that_fail_a_request_end_it(
    api: Api,
    stream: bool,
    known: bool,
    problem: EngineError,
    cause: str,
    code: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if known:
        await serve_alike(api, stream=stream)
    call = api.post(CHAT, chat(stream=stream))
    add = await api.next_add()
    api.say_output(add, finish_reason=FinishReason.ERROR, error=problem)
    writer = await call.finished()

    assert error_of(writer, stream=stream)["code"] == code
    assert api.ends == {cause: 1}
    level, text = only_line(caplog, cause)
    assert level == logging.WARNING
    assert problem.message in text


async def test_engines_that_abort_a_request_end_it(
    api: Api, stream: bool, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if known:
        await serve_alike(api, stream=stream)
    call = api.post(CHAT, chat(stream=stream))
    api.say(await api.next_add(), [500], FinishReason.ABORT)
    writer = await call.finished()

    answer = writer.events[-2] if stream else writer.json
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert api.ends == {"engine_aborted": 1}
    assert only_line(caplog, "engine_aborted")[0] == logging.WARNING


async def test_an_engine_that_dies_ends_what_cannot_go_on(
    api: Api, stream: bool, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if known:
        await serve_alike(api, stream=stream)
    call = api.post(CHAT, chat(stream=stream))
    add = await api.next_add()
    api.say(add, [500])
    await api.heard(add, 1)
    api.engine.report_death()
    found = error_of(await call.finished(), stream=stream)

    assert (found["code"], found["reason"]) == (503, "interrupted")
    assert api.ends == {"engine_died": 1}
    assert not api.metrics.refusals
    level, text = only_line(caplog, "engine_died")
    assert level == logging.WARNING
    assert "output_tokens=1" in text


async def test_bugs_end_requests_in_words(
    api: Api, stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait_finished(_stream: RequestStream) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RequestStream, "wait_finished", wait_finished)
    writer = await api.answer(CHAT, chat(stream=stream))

    assert error_of(writer, stream=stream)["code"] == 500
    assert api.client.num_in_flight == 0
    assert api.ends == {"internal_error": 1}
    assert only_line(caplog, "internal_error")[0] == logging.WARNING
    assert "ZeroDivisionError" in caplog.text


async def test_what_clients_do_wrong_is_refused_without_a_line(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answers = [
        await api.answer(CHAT, chat(temperature=-1)),
        await api.answer(CHAT, b"{"),
        await api.answer(COMPLETIONS, completion(model="other")),
        await api.answer(COMPLETIONS, completion([10**9])),
    ]

    assert [writer.status for writer in answers] == [400, 400, 404, 400]
    assert api.ends == {"refused": 4}
    assert not api.metrics.refusals
    assert caplog.records == []


def refuse(ends: RequestEnds, error: EngineUnavailable | Overloaded, times: int = 1) -> None:
    request = HttpRequest(method="POST", path=CHAT, raw_path=b"", query=b"", headers=(), body=b"")
    for _ in range(times):
        ends.note(InferenceCall(request, Gate()), error=error)


async def test_refusals_for_one_reason_share_a_line_for_a_while(
    autojump_clock: MockClock,  # noqa: ARG001 (asked for because of its effect)
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    metrics = InferenceMetrics()
    ends = RequestEnds(metrics)
    full = Overloaded("full", reason=Reason.QUEUE_FULL, limit=10, current=10)
    refuse(ends, full, times=100)
    refuse(ends, EngineUnavailable("loading", reason=Reason.LOADING), times=2)
    await trio.sleep(QUIET_SECONDS)
    refuse(ends, full)

    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "Refused 1 requests with 503: reason=queue_full limit=10 current=10: full"),
        ("INFO", "Refused 1 requests with 503: reason=loading: loading"),
        ("WARNING", "Refused 100 requests with 503: reason=queue_full limit=10 current=10: full"),
    ]
    assert metrics.refusals == {Reason.QUEUE_FULL: 101, Reason.LOADING: 2}
