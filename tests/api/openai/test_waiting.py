"""Requests without an engine: they go on with the next one, or end in words."""

import logging
from collections.abc import AsyncGenerator

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.api.openai._harness import (
    CHAT,
    Api,
    chat,
    open_api,
)
from tests.api.openai._told import DONE, lines, only_line, serve_alike
from vllmfront.engine import FinishReason
from vllmfront.engine.client.membership._membership import Membership
from vllmfront.models import ModelDescription
from vllmfront.text import Tokenizer


@pytest.fixture
async def kept(model: ModelDescription, tokenizer: Tokenizer) -> AsyncGenerator[Api]:
    """Routes whose requests wait for another engine."""
    async with open_api(model, tokenizer, recovery_wait=30) as api:
        yield api


async def test_a_request_of_a_lost_engine_goes_on_with_another(
    kept: Api, stream: bool, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if known:
        await serve_alike(kept, stream=stream)
    call = kept.post(CHAT, chat(stream=stream))
    first = await kept.next_add()
    await kept.replace_engine()
    second = await kept.next_add()
    kept.say(second, [500], FinishReason.STOP)
    writer = await call.finished()

    assert first.internal_id != second.internal_id
    assert writer.status == 200
    assert kept.ends == {"stop": 1}
    assert kept.client.num_in_flight == 0
    assert kept.metrics.gate().in_flight == 0
    assert lines(caplog) == []


async def test_a_new_request_waits_for_an_engine_without_a_head(
    kept: Api, stream: bool, known: bool
) -> None:
    if known:
        await serve_alike(kept, stream=stream)
    kept.engine.report_death()
    await kept.client.wait_lost()
    call = kept.post(CHAT, chat(stream=stream))
    await wait_all_tasks_blocked()
    before = (call.writer.started, kept.metrics.gate().in_flight, kept.client.num_waiting)
    await kept.replace_engine()
    kept.say(await kept.next_add(), [500], FinishReason.STOP)
    writer = await call.finished()

    assert before == (False, 1, 1)
    assert writer.status == 200
    assert kept.ends == {"stop": 1}


async def test_a_request_that_waited_in_vain_is_told_so(
    model: ModelDescription,
    tokenizer: Tokenizer,
    stream: bool,
    known: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(_membership: Membership, _rank: int | None = None) -> None:
        return None

    monkeypatch.setattr(Membership, "seconds_until_ready", unknown)
    async with open_api(model, tokenizer, recovery_wait=0.05) as api:
        if known:
            await serve_alike(api, stream=stream)
        api.engine.report_death()
        await api.client.wait_lost()
        writer = await api.answer(CHAT, chat(stream=stream))

        assert writer.status == 503
        assert writer.json["error"]["reason"] == "recovering"
        assert int(writer.headers[b"retry-after"]) >= 1
        assert api.ends == {"recovery_timeout": 1}
        assert api.metrics.gate().in_flight == 0
    assert only_line(caplog, "recovery_timeout")[0] == logging.WARNING


async def test_who_would_wait_in_vain_is_told_so_at_once(
    model: ModelDescription, tokenizer: Tokenizer, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_api(model, tokenizer, recovery_wait=0.5) as api:
        api.engine.report_death()
        await api.client.wait_lost()
        writer = await api.answer(CHAT, chat(stream=stream))

        assert writer.status == 503
        assert writer.json["error"]["reason"] == "recovering"
        assert int(writer.headers[b"retry-after"]) >= 1
        assert api.ends == {"refused": 1}
        assert api.metrics.refusals == {"recovering": 1}
    assert "Refused 1 requests with 503: reason=recovering" in caplog.text
    assert lines(caplog) == []


async def test_a_client_may_leave_while_its_request_waits(
    kept: Api, stream: bool, known: bool
) -> None:
    if known:
        await serve_alike(kept, stream=stream)
    kept.engine.report_death()
    await kept.client.wait_lost()
    call = kept.post(CHAT, chat(stream=stream))
    await wait_all_tasks_blocked()
    call.leave()
    await call.finished()

    assert kept.ends == {"client_gone": 1}
    assert (kept.client.num_in_flight, kept.client.num_waiting) == (0, 0)
    assert kept.metrics.gate().in_flight == 0


async def test_a_deadline_covers_waiting_for_an_engine(
    kept: Api, stream: bool, known: bool
) -> None:
    if known:
        await serve_alike(kept, stream=stream)
    kept.engine.report_death()
    await kept.client.wait_lost()
    writer = await kept.answer(CHAT, chat(stream=stream, timeout=0.05))

    assert writer.status == 504
    assert writer.json["error"]["reason"] == "timed_out"
    assert kept.ends == {"timed_out": 1}
    assert kept.client.num_waiting == 0


async def test_requests_that_meet_an_engine_just_killed_survive(kept: Api) -> None:
    kept.engine.close()  # nobody has noticed yet
    calls = [kept.post(CHAT, chat(stream=bool(number % 2))) for number in range(10)]
    await kept.replace_engine()
    for _ in calls:
        kept.say(await kept.next_add(), [500], FinishReason.STOP)
    writers = [await call.finished() for call in calls]

    assert [writer.status for writer in writers] == [200] * 10
    assert kept.ends == {"stop": 10}


async def test_a_stream_without_an_engine_keeps_its_client_patient_and_goes_on(
    kept: Api, known: bool
) -> None:
    if known:
        await serve_alike(kept, stream=True, temperature=0)
    call = kept.post(CHAT, chat(stream=True, temperature=0))
    add = await kept.next_add()
    kept.say(add, [500])
    await kept.heard(add, 1)
    kept.engine.report_death()
    await kept.client.wait_lost()
    [waiting] = kept.slot.waiting_streams
    assert waiting.on_waiting is not None
    waiting.on_waiting()
    comment = call.writer.pieces[-1]
    await kept.replace_engine()
    again = await kept.next_add()
    kept.say(again, [341], FinishReason.STOP)
    writer = await call.finished()

    assert waiting.begun
    assert comment == b": keep-alive\n\n"
    assert again.request.prompt_token_ids == [*add.request.prompt_token_ids, 500]
    assert writer.events[-1] == DONE
    assert kept.ends == {"stop": 1}
    assert kept.slot.waiting_streams == []
