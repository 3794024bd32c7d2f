"""Clients that leave, at each phase of their request."""

import itertools
import json
from typing import Any

import pytest
import trio

from tests.abuse.rig import (
    CHAT,
    COMPLETIONS,
    LONG,
    Books,
    Engine,
    Frontend,
    open_engine,
    post,
    until,
)
from vllmfront.engine import FinishReason
from vllmfront.simulator import Act, Rule, Script

BEGINNINGS = [
    b"",
    b"PO",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le",
    post(COMPLETIONS, LONG)[:-5],
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{",
]


async def test_before_the_request_is_whole_no_engine_hears_of_it(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    for data, reset in itertools.product(BEGINNINGS, (False, True)):
        async with frontend.connect() as client:
            await client.send(data)
            client.close(reset=reset)
    after = await frontend.settle(base)
    await frontend.check_works()

    assert after.ends == base.ends
    assert len(engine.adds) == 1


REQUESTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "stream": (COMPLETIONS, {**LONG, "stream": True}, 1),
    "whole": (COMPLETIONS, LONG, 1),
    "n": (COMPLETIONS, {**LONG, "n": 4, "temperature": 1.0, "stream": True}, 4),
    "n-whole": (COMPLETIONS, {**LONG, "n": 4, "temperature": 1.0}, 4),
    "batch": (COMPLETIONS, {**LONG, "prompt": ["a", "b", "c"], "stream": True}, 3),
    "batch-whole": (COMPLETIONS, {**LONG, "prompt": ["a", "b", "c"]}, 3),
    "chat": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 50_000,
            "ignore_eos": True,
            "stream": True,
        },
        1,
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_while_the_engine_works_it_hears_of_it_once(
    frontend: Frontend, engine: Engine, base: Books, name: str
) -> None:
    path, body, children = REQUESTS[name]
    reset = name in {"stream", "n-whole", "batch"}
    async with frontend.connect() as client:
        await client.send(post(path, body))
        if body.get("stream"):
            await client.read_until(b"data: ")
        await until(lambda: len(engine.adds) == children)
        left_at = trio.current_time()
        client.close(reset=reset)
        await until(lambda: len(engine.aborted) == children)
        aborted_at = engine.heard[-1][0]
    after = await frontend.settle(base)
    await frontend.check_works()

    assert sorted(engine.aborted) == sorted(add.internal_id for add in engine.adds[:children])
    assert aborted_at - left_at < 0.5
    assert after.ends == base.ends | {"client_gone": base.ends["client_gone"] + 1}
    assert engine.busy == 0


async def test_before_the_first_token_it_hears_of_it_once(frontend: Frontend) -> None:
    async with open_engine(frontend, prefill_time_per_token=60.0) as engine:
        base = await frontend.books()
        async with frontend.connect() as client:
            await client.send(post(COMPLETIONS, {**LONG, "stream": True}))
            await until(lambda: len(engine.adds) == 1)
            client.close()
            await until(lambda: len(engine.aborted) == 1)
        after = await frontend.settle(base)

    assert len(engine.aborted) == 1
    assert after.ends == base.ends | {"client_gone": base.ends["client_gone"] + 1}


async def test_while_a_long_prompt_is_tokenised_no_engine_hears_of_it(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    body = json.dumps({"prompt": "word " * 400_000, "max_tokens": 5}).encode()
    async with frontend.connect() as client:
        await client.send(post(COMPLETIONS, body))
        client.close(reset=True)
    after = await frontend.settle(base, rss_slack=200 * 1024 * 1024)
    await frontend.check_works()

    assert len(engine.adds) == 1
    assert engine.aborted == []
    assert after.ends["client_gone"] - base.ends["client_gone"] <= 1


async def test_once_the_engine_has_finished_there_is_nothing_to_abort(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    """The end of the stream is on its way when the client leaves without having read it."""
    async with frontend.connect() as client:
        await client.send(post(COMPLETIONS, {"prompt": "hi", "max_tokens": 2, "stream": True}))
        with trio.fail_after(10):
            while (await frontend.books()).ends["length"] == base.ends["length"]:  # noqa: ASYNC110
                await trio.sleep(0.005)  # what the frontend has read shows in its metrics alone
        client.close(reset=True)
    after = await frontend.settle(base)
    await frontend.check_works()

    assert engine.aborted == []
    assert after.ends["length"] == base.ends["length"] + 1
    assert after.ends["client_gone"] == base.ends["client_gone"]


async def test_a_child_that_has_finished_is_not_aborted_with_its_siblings(
    frontend: Frontend,
) -> None:
    rule = Rule(nth=0, tokens=[5, 6], acts=[Act(finish=FinishReason.LENGTH.value)])
    body = {**LONG, "n": 4, "temperature": 1.0, "stream": True}
    async with open_engine(frontend, script=Script(rules=[rule])) as engine:
        base = await frontend.books()
        async with frontend.connect() as client:
            await client.send(post(COMPLETIONS, body))
            await client.read_until(b'"finish_reason":"length"')
            client.close()
            await until(lambda: len(engine.aborted) == 3)
        await frontend.settle(base)

    ids = [add.internal_id for add in engine.adds]
    assert sorted(engine.aborted) == sorted(ids[1:])


async def test_many_that_come_and_go_leave_nothing(frontend: Frontend, engine: Engine) -> None:
    """Finished, refused, left at once, left in the stream: round after round the same."""
    bodies = [
        post(COMPLETIONS, {"prompt": "hi", "max_tokens": 2}),
        post(COMPLETIONS, {"prompt": "hi", "max_tokens": -1}),
        post(COMPLETIONS, {**LONG, "stream": True}),
        post(COMPLETIONS, LONG),
    ]

    async def come_and_go(data: bytes) -> None:
        async with frontend.connect() as client:
            await client.send(data)
            with trio.move_on_after(0.05):
                await client.read_all()

    async def do_round() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(come_and_go, bodies[number % len(bodies)])
        await frontend.wait_load(0)

    await do_round()
    base = await frontend.books()
    for _ in range(3):
        await do_round()
    await frontend.settle(base)

    assert engine.busy == 0
    assert sorted(set(engine.aborted)) == sorted(engine.aborted)
