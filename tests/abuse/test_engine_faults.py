"""Engines that are killed, stopped, or say nonsense: each request gets its one end, in words."""

import json
import signal
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from tests.abuse.rig import (
    COMPLETIONS,
    LONG,
    Books,
    Client,
    Engine,
    Frontend,
    engine_process,
    events,
    open_engine,
    parse_answer,
    post,
    until,
    until_async,
)
from vllmfront.engine import FinishReason
from vllmfront.engine.wire import encode_batch, plain_row
from vllmfront.simulator import Act, Rule, Script

STREAM = post(COMPLETIONS, {**LONG, "stream": True})
WHOLE = post(COMPLETIONS, LONG)
SHORT = post(COMPLETIONS, {**LONG, "max_tokens": 3})


def check_ended_in_words(received: bytes) -> None:
    """A stream that its engine left ends with an error event, then ``[DONE]``."""
    data = events(received)

    assert data[-1] == "[DONE]"
    assert json.loads(data[-2])["error"]["code"] in {500, 503}
    assert not any('"error"' in each for each in data[:-2])


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
async def test_an_engine_may_be_killed_while_it_works(
    frontend: Frontend, number: signal.Signals
) -> None:
    """Streams end in words, whole answers are honest errors, and its successor serves."""
    await frontend.wait_health(503)
    with engine_process(frontend) as process:
        await frontend.wait_health(200)
        await frontend.check_works()
        base = await frontend.books()
        async with frontend.connect() as stream, frontend.connect() as whole:
            await stream.send(STREAM)
            await whole.send(WHOLE)
            await stream.read_until(b"data: ")
            await frontend.wait_load(2)
            process.send_signal(number)
            with trio.fail_after(10):
                streamed, answered = await stream.read_all(), parse_answer(await whole.read_all())
        await frontend.wait_health(503)
        refused = await frontend.ask(WHOLE)
    after = await frontend.settle(base)
    async with open_engine(frontend):
        await frontend.check_works()

    check_ended_in_words(streamed)
    assert answered.status in {500, 503}
    assert refused.status == 503
    assert "retry-after" in refused.headers
    assert after.ends["engine_died"] == base.ends["engine_died"] + 2


@pytest.mark.parametrize(
    ("flags", "phase"),
    [
        (["--start-delay-ms", "600000"], "loading"),
        ([], "idle"),
        (["--prefill-ms-per-token", "600000"], "prefill"),
    ],
)
async def test_an_engine_may_be_killed_in_any_phase(
    frontend: Frontend, flags: list[str], phase: str
) -> None:
    await frontend.wait_health(503)
    base = await frontend.books()
    logged = len(frontend.log_text())
    with engine_process(frontend, *flags) as process:
        await until(lambda: "said HELLO" in frontend.log_text()[logged:])
        if phase == "loading":
            process.kill()
        else:
            await frontend.wait_health(200)
        if phase == "idle":
            process.kill()
            await frontend.wait_health(503)
        if phase == "prefill":
            async with frontend.connect() as client:
                await client.send(STREAM)
                await frontend.wait_load(1)
                process.kill()
                with trio.fail_after(10):
                    received = await client.read_all()

            assert b" 503 " in received[:20] or events(received)[-1] == "[DONE]"
            assert b'"error"' in received
    refused = await frontend.ask(WHOLE)
    await frontend.settle(base)
    async with open_engine(frontend):
        await frontend.check_works()

    assert refused.status == 503


async def test_an_engine_killed_right_at_the_end_ends_each_request_once(frontend: Frontend) -> None:
    """Short requests all the time, and a kill somewhere: each is answered, well or in words."""
    await frontend.wait_health(503)
    base = await frontend.books()
    answers: list[Any] = []
    with engine_process(frontend, "--step-ms", "0") as process:
        await frontend.wait_health(200)

        async def ask_on() -> None:
            body = post(COMPLETIONS, {"prompt": "hi", "max_tokens": 1, "ignore_eos": True})
            while not answers or answers[-1].status == 200:
                answers.append(await frontend.ask(body))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask_on)
            await until(lambda: len(answers) > 20)
            process.kill()
    after = await frontend.settle(base)

    assert {answer.status for answer in answers} <= {200, 500, 503}
    assert after.ends["length"] - base.ends["length"] == sum(a.status == 200 for a in answers)


async def test_an_engine_may_pause_and_go_on(frontend: Frontend) -> None:
    await frontend.wait_health(503)
    with engine_process(frontend) as process:
        await frontend.wait_health(200)
        await frontend.check_works()
        base = await frontend.books()
        async with frontend.connect() as client, frontend.connect() as late:
            await client.send(STREAM)
            await client.read_until(b"data: ")
            process.send_signal(signal.SIGSTOP)
            await late.send(post(COMPLETIONS, {"prompt": "hi", "max_tokens": 3}))
            await frontend.wait_load(2)
            client.close()
            await frontend.wait_load(1)
            health = await frontend.health()
            process.send_signal(signal.SIGCONT)
            with trio.fail_after(10):
                answer = parse_answer(await late.read_all())
        after = await frontend.settle(base)
        await frontend.check_works()
    await frontend.wait_health(503)

    assert health == 200
    assert answer.status == 200
    assert after.ends["client_gone"] == base.ends["client_gone"] + 1


NONSENSE_A_TEST = 8
"""Sent twice, and no more, because an engine that goes on like this is given up."""

NONSENSE: dict[str, list[bytes]] = {
    "nothing": [b""],
    "many frames": [b"x"] * 50,
    "no msgpack": [b"\xc1" * 100],
    "noise": [bytes(range(256)) * 40],
    "number": [msgspec.msgpack.encode(7)],
    "text": [msgspec.msgpack.encode("hello")],
    "map": [msgspec.msgpack.encode({"outputs": []})],
    "empty list": [msgspec.msgpack.encode([])],
    "deep": [b"\x91" * 100_000],
    "long list": [msgspec.msgpack.encode(list(range(1000)))],
    "rows of numbers": [msgspec.msgpack.encode([0, [1, 2, 3], None, 0.0])],
    "row without id": [msgspec.msgpack.encode([0, [[None, [1]]], None, 0.0])],
    "ids of text": [msgspec.msgpack.encode([0, [["x", ["a", "b"]]], None, 0.0])],
    "promise of much": [b"\xdd\xff\xff\xff\xff"],
    "promise of much text": [b"\xdb\xff\xff\xff\xff"],
    "extension": [b"\xc7\x05\x7fhello"],
    "cut short": [encode_batch([plain_row("x", [1, 2, 3])], engine_index=0, timestamp=0.0)[0][:-3]],
    "unknown request": list(
        encode_batch([plain_row("nobody", [1])], engine_index=0, timestamp=0.0)
    ),
    "unknown rank": list(encode_batch([plain_row("nobody", [1])], engine_index=99, timestamp=0.0)),
    "negative rank": list(encode_batch([], engine_index=-1, timestamp=0.0)),
    "the end of nobody": list(
        encode_batch([plain_row("nobody", [], FinishReason.STOP)], engine_index=0, timestamp=0.0)
    ),
}


@pytest.mark.parametrize("begin", range(0, len(NONSENSE), NONSENSE_A_TEST))
async def test_nonsense_of_an_engine_costs_what_it_may_have_said_and_no_more(
    frontend: Frontend, engine: Engine, base: Books, begin: int
) -> None:
    """A message that nobody can read may have held tokens: streams go on from before, or end."""
    nonsense = list(NONSENSE.values())[begin : begin + NONSENSE_A_TEST]
    async with frontend.connect() as client:
        await client.send(STREAM)
        await client.read_until(b"data: ")
        for _ in range(2):
            for frames in nonsense:
                engine.send_raw(*frames)
            # A request that meets several of them is sent again too often.
            await until_async(partial(_answers, frontend))
        assert await frontend.health() == 200
        if (await frontend.ends())["engine_died"] > base.ends["engine_died"]:
            check_ended_in_words(await client.read_all())
        else:
            await _check_goes_on(client)
        client.close()
    after = await frontend.settle(base)
    await until(lambda: engine.busy == 0)

    assert after.ends["internal_error"] == base.ends["internal_error"]


async def _answers(frontend: Frontend) -> bool:
    answer = await frontend.ask(SHORT)
    assert answer.status == 200 or answer.json["error"]["reason"] == "interrupted"
    return answer.status == 200


async def _check_goes_on(client: Client) -> None:
    seen = client.received.count(b"data: ")
    with trio.fail_after(10):
        while client.received.count(b"data: ") < seen + 20:
            assert await client.read()


BAD_ROWS: dict[str, list[Any]] = {
    "negative token": [[-1]],
    "token beyond the vocabulary": [[2**31]],
    "token beyond 64 bits": [[2**63]],
    "token of text": [["x"]],
    "token of nothing": [[None]],
    "tokens of text": ["tokens"],
    "no tokens": [],
    "logprobs of text": [[5], "logprobs"],
    "reason of text": [[5], None, None, None, "stop"],
}


async def test_nonsense_about_a_request_costs_that_request_at_most(
    shared_frontend: Frontend, engine: Engine, base: Books
) -> None:
    """It may well log what its output pipeline could not take, which the fixture would not let."""
    async with shared_frontend.connect() as other:
        await other.send(STREAM)
        await other.read_until(b"data: ")
        for number, row in enumerate(BAD_ROWS.values(), 1):
            async with shared_frontend.connect() as victim:
                await victim.send(STREAM)
                await victim.read_until(b"data: ")
                rows = [[engine.adds[number].internal_id, *row]]
                engine.send_raw(msgspec.msgpack.encode([0, rows, None, 0.0]))
                await _check_goes_on(other)
        other.close()
        await until(lambda: engine.busy == 0)
    after = await shared_frontend.settle(base)
    await shared_frontend.check_works()

    assert sorted(engine.aborted) == sorted(add.internal_id for add in engine.adds[:-1])
    assert sum(after.ends.values()) == sum(base.ends.values()) + 1 + len(BAD_ROWS)


async def test_what_comes_after_an_end_reaches_nobody(frontend: Frontend) -> None:
    """Finished twice, or spoken on after its end: the next request hears nothing of it."""
    async with open_engine(frontend) as engine:
        await frontend.check_works()
        base = await frontend.books()
        (old,) = [add.internal_id for add in engine.adds]
        late = plain_row(old, [7, 8, 9], FinishReason.STOP)
        async with frontend.connect() as client:
            await client.send(post(COMPLETIONS, {**LONG, "max_tokens": 50, "stream": True}))
            await client.read_until(b"data: ")
            for _ in range(20):
                engine.send_raw(*encode_batch([late, late], engine_index=0, timestamp=0.0))
            received = await client.read_all()
        after = await frontend.settle(base)

    data = events(received)
    assert data[-1] == "[DONE]"
    assert sum('"finish_reason":"length"' in each for each in data) == 1
    assert after.ends == base.ends | {"length": base.ends["length"] + 1}


@pytest.mark.parametrize("act", [Act(die=True), Act(vanish=True)], ids=["sentinel", "vanish"])
async def test_an_engine_that_says_that_it_died_is_believed(frontend: Frontend, act: Act) -> None:
    rule = Rule(tokens=[5, 6, 7], acts=[act])
    async with open_engine(frontend, script=Script(rules=[rule])):
        base = await frontend.books()
        received = await frontend.exchange(STREAM)
        await frontend.wait_health(503)
        after = await frontend.settle(base)
    async with open_engine(frontend):
        await frontend.check_works()

    check_ended_in_words(received)
    assert after.ends["engine_died"] == base.ends["engine_died"] + 1


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        (Act(finish=FinishReason.ERROR.value), "engine_error"),
        (Act(finish=FinishReason.ABORT.value), "engine_aborted"),
        (Act(finish=99), "engine_error"),
    ],
    ids=["error", "abort", "unknown"],
)
async def test_an_odd_end_is_an_end(frontend: Frontend, act: Act, cause: str) -> None:
    rule = Rule(tokens=[5, 6, 7], acts=[act], times=1)
    async with open_engine(frontend, script=Script(rules=[rule])) as engine:
        base = await frontend.books()
        received = await frontend.exchange(STREAM)
        after = await frontend.settle(base)
        await frontend.check_works()

    data = events(received)
    assert data[-1] == "[DONE]"
    assert '"error"' in data[-2] or '"finish_reason":"abort"' in data[-2]
    changed = {key for key in after.ends if after.ends[key] != base.ends[key]}
    assert changed in ({cause}, {"protocol_error"})
    assert engine.busy == 0


async def test_engines_may_come_and_go(frontend: Frontend) -> None:
    """Five incarnations of one rank, each killed in its work: nothing piles up."""
    async with open_engine(frontend):
        await frontend.check_works()
    base = await frontend.books()
    for _ in range(5):
        async with open_engine(frontend) as engine, frontend.connect() as client:
            await client.send(STREAM)
            await client.read_until(b"data: ")
            engine.vanish()
            check_ended_in_words(await client.read_all())
    await frontend.settle(base)


async def test_a_stream_of_an_engine_that_left_does_not_go_on_in_its_successor(
    frontend: Frontend,
) -> None:
    async with open_engine(frontend) as first, frontend.connect() as client:
        await client.send(STREAM)
        await client.read_until(b"data: ")
        (old,) = [add.internal_id for add in first.adds]
        first.vanish()
        received = await client.read_all()
        await frontend.wait_health(503)
    async with open_engine(frontend) as second:
        base = await frontend.books()
        late = plain_row(old, [7, 8, 9], FinishReason.STOP)
        second.send_raw(*encode_batch([late], engine_index=0, timestamp=0.0))
        await frontend.check_works()
        after = await frontend.settle(base)

    check_ended_in_words(received)
    assert after.ends == base.ends | {"length": base.ends["length"] + 1}
