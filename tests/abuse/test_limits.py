"""More requests than an operator allows, for longer, and for engines that die meanwhile."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import attrs
import pytest
import trio

from tests.abuse.rig import (
    CHAT,
    COMPLETIONS,
    LONG,
    Engine,
    Frontend,
    engine_config,
    engine_process,
    events,
    open_engine,
    parse_answer,
    post,
    running_frontend,
    until,
)

CAP = 10
REQUESTS = 100


@attrs.frozen
class Setting:
    """A frontend with limits, and its engine."""

    frontend: Frontend
    engine: Engine


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncGenerator[Setting]:
    flags = ("--max-num-queued-reqs", str(CAP), "--default-request-timeout", "20")
    with running_frontend(tmp_path, *flags) as frontend:
        engine = Engine(engine_config(frontend))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.run)
            await frontend.wait_health(200)
            await frontend.check_works()
            engine.heard.clear()
            yield Setting(frontend, engine)
            nursery.cancel_scope.cancel()


async def metric(frontend: Frontend, name: str) -> float:
    """Return the value of a series, by name and labels."""
    text = (await frontend.get("/metrics")).body.decode()
    [value] = [line.removeprefix(name) for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(value)


@pytest.mark.parametrize("path", [CHAT, pytest.param(COMPLETIONS, marks=pytest.mark.slow)])
async def test_of_many_at_once_as_many_come_in_as_are_allowed(limited: Setting, path: str) -> None:
    frontend, engine = limited.frontend, limited.engine
    body: dict[str, object] = {"max_tokens": 1000, "ignore_eos": True}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": "hi"}]
    else:
        body["prompt"] = "hi"
    base = await frontend.books()
    received: list[bytes] = []

    async def ask() -> None:
        received.append(await frontend.exchange(post(path, body)))

    async with trio.open_nursery() as nursery:
        for _ in range(REQUESTS):
            nursery.start_soon(ask)
        await until(lambda: len(received) >= REQUESTS - CAP)
        full = await metric(frontend, "vllmfront:admitted_choices")
    after = await frontend.settle(base)
    answers = [parse_answer(each) for each in received]
    refused = [answer for answer in answers if answer.status == 503]

    assert full == CAP
    assert len(engine.adds) == CAP
    assert [answer.status for answer in answers].count(200) == CAP
    assert len(refused) == REQUESTS - CAP
    for answer in refused:
        error = answer.json["error"]
        assert (error["type"], error["code"]) == ("ServiceUnavailableError", 503)
        assert (error["reason"], error["param"]) == ("queue_full", None)
        assert f"{CAP} of at most {CAP}" in error["message"]
        assert int(answer.headers["retry-after"]) >= 1
    assert after.ends == base.ends | {
        "length": base.ends["length"] + CAP,
        "refused": base.ends["refused"] + REQUESTS - CAP,
    }
    assert await metric(frontend, "vllmfront:admitted_choices") == 0
    assert await metric(frontend, "vllmfront:admitted_choices_limit") == CAP
    reason = 'vllmfront:requests_refused_total{reason="queue_full"}'
    assert await metric(frontend, reason) == REQUESTS - CAP
    log = frontend.log_text()
    assert f"reason=queue_full limit={CAP} current={CAP}" in log
    assert log.count("reason=queue_full") < REQUESTS - CAP


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_deadlines_of_clients_hold_on_the_wire(limited: Setting, stream: bool) -> None:
    frontend, engine = limited.frontend, limited.engine
    body = {**LONG, "stream": stream, "timeout": 1000}
    base = await frontend.books()
    request = post(COMPLETIONS, body).replace(b"\r\n", b"\r\nX-Request-Timeout: 0.5\r\n", 1)
    began = trio.current_time()
    received = await frontend.exchange(request)
    took = trio.current_time() - began
    after = await frontend.settle(base)

    if stream:
        data = events(received)
        assert data[-1] == "[DONE]"
        error = json.loads(data[-2])["error"]
    else:
        answer = parse_answer(received)
        assert answer.status == 504
        error = answer.json["error"]
    assert (error["code"], error["reason"]) == (504, "timed_out")
    assert 0.5 <= took < 5.0
    assert engine.aborted == [add.internal_id for add in engine.adds]
    assert after.ends == base.ends | {"timed_out": base.ends["timed_out"] + 1}


async def test_requests_survive_the_death_of_their_engine(tmp_path: Path) -> None:
    """What had no token is sent again; a stream goes on; what comes meanwhile waits its turn."""
    greedy = {"prompt": "hi", "max_tokens": 30, "ignore_eos": True, "temperature": 0}
    slow = ("--prefill-ms-per-token", "600000")
    with running_frontend(tmp_path, "--max-num-queued-reqs", str(CAP)) as frontend:
        received: list[bytes] = []

        async def ask(body: dict[str, object]) -> None:
            received.append(await frontend.exchange(post(COMPLETIONS, body)))

        async with trio.open_nursery() as nursery:
            with engine_process(frontend, *slow) as process:
                await frontend.wait_health(200)
                nursery.start_soon(ask, greedy)
                nursery.start_soon(ask, {**greedy, "stream": True})
                await frontend.wait_load(2)
                process.kill()
                nursery.start_soon(ask, greedy)
                await frontend.wait_health(503)
                nursery.start_soon(ask, {**greedy, "stream": True})
                await frontend.wait_load(4)
            async with open_engine(frontend):
                await until(lambda: len(received) == 4)
                ends = await frontend.ends()
                admitted = await metric(frontend, "vllmfront:admitted_choices")
            nursery.cancel_scope.cancel()

    assert all(each.startswith(b"HTTP/1.1 200 ") for each in received)
    assert sum(b'"finish_reason":"length"' in each for each in received) == 4
    assert {cause: count for cause, count in ends.items() if count} == {"length": 4}
    assert admitted == 0
    assert "Traceback" not in frontend.log_text()
