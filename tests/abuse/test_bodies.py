"""Bodies, headers and paths made to hurt: each gets an answer, and nobody else notices."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.abuse.rig import (
    CHAT,
    COMPLETIONS,
    LONG,
    MIB,
    Books,
    Engine,
    Frontend,
    get,
    post,
)

HEALTH_SECONDS = 4.0
"""How long a probe may take while other tests share two cores with it; a loop that is held takes
tens of seconds. On an idle machine it takes a quarter of a second."""


def complete(**fields: Any) -> bytes:
    return json.dumps({"prompt": "hi", "max_tokens": 2, "ignore_eos": True, **fields}).encode()


def with_raw(text: bytes) -> bytes:
    return b'{"prompt":"hi","max_tokens":2,' + text + b"}"


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@asynccontextmanager
async def healthy_throughout(frontend: Frontend) -> AsyncGenerator[None]:
    """Check that the frontend answers probes while the block runs."""
    worst = 0.0

    async def probe() -> None:
        nonlocal worst
        while True:
            begun = trio.current_time()
            assert await frontend.health() == 200
            worst = max(worst, trio.current_time() - begun)
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe)
        yield
        nursery.cancel_scope.cancel()

    assert worst < HEALTH_SECONDS


REFUSED = {
    "nothing": b"",
    "null": b"null",
    "number": b"1",
    "text behind it": complete() + b"x",
    "byte order mark": b"\xef\xbb\xbf" + complete(),
    "utf-16": json.dumps({"prompt": "hi"}).encode("utf-16"),
    "no utf-8": b'{"prompt":"\xff\xfe"}',
    "surrogate as bytes": b'{"prompt":"\xed\xa0\x80"}',
    "lone surrogate": b'{"prompt":"\\ud800"}',
    "lone surrogate in the id": with_raw(b'"request_id":"\\udfff"'),
    "arrays for ever": b"[" * 100_000,
    "objects for ever": b'{"a":' * 100_000,
    "deep": nested(100_000),
    "deep prompt": b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep and unknown": with_raw(b'"zzz":' + nested(100_000)),
    "deep parameters": with_raw(b'"kv_transfer_params":' + nested(900)),
    "deep arguments": with_raw(b'"vllm_xargs":' + nested(900)),
    "deep schema": with_raw(b'"structured_outputs":{"json":' + nested(900) + b"}"),
    "deep schema in text": complete(structured_outputs={"json": nested(900).decode()}),
    "NaN": with_raw(b'"temperature":NaN'),
    "Infinity": with_raw(b'"temperature":-Infinity'),
    "beyond doubles": with_raw(b'"temperature":1e400'),
    "beyond singles": with_raw(b'"temperature":1e308'),
    "thousands of digits": with_raw(b'"max_tokens":' + b"9" * 5000),
    "65 bits": complete(seed=2**64),
    "true for a number": complete(temperature=True),
    "number as text": complete(temperature="1"),
    "n": complete(n=10**9, temperature=1.0),
    "n below zero": complete(n=-1),
    "batch": complete(prompt=["a"] * 100_000),
    "batch times n": complete(prompt=[[1]] * 10_000, n=100, temperature=1.0),
    "many ids": complete(prompt=[1] * 1_000_000),
    "id below zero": complete(prompt=[-1]),
    "id beyond the vocabulary": complete(prompt=[2048]),
    "id beyond 32 bits": complete(prompt=[2**40]),
    "ids and text": complete(prompt=[1, "a"]),
    "empty prompt": complete(prompt=""),
    "no prompts": complete(prompt=[]),
    "an empty one among them": complete(prompt=[[1], []]),
    "many stop strings": complete(stop=["x" * 100] * 100_000),
    "empty stop string": complete(stop=[""]),
    "stop id below zero": complete(stop_token_ids=[-1]),
    "many biases": complete(logit_bias={str(number): 1.0 for number in range(300_000)}),
    "bias of text": complete(logit_bias={"x": 1}),
    "bias of thousands of digits": complete(logit_bias={"9" * 5000: 1}),
    "bias of foreign digits": complete(logit_bias={"\uff11": 1}),
    "infinite bias": with_raw(b'"logit_bias":{"1":1e400}'),
    "logprobs": complete(logprobs=10**9),
    "prompt logprobs": complete(prompt_logprobs=10**9),
    "many allowed ids": complete(allowed_token_ids=list(range(1_000_000))),
    "no allowed ids": complete(allowed_token_ids=[]),
    "truncation": complete(truncate_prompt_tokens=10**18),
    "broken pattern": complete(structured_outputs={"regex": "(" * 100}),
    "deep pattern": complete(structured_outputs={"regex": "(" * 50_000 + ")" * 50_000}),
    "two constraints": complete(structured_outputs={"regex": "a", "json_object": True}),
    "huge prompt": complete(prompt="a" * 10_000_000),
    "huge model name": complete(model="a" * 10_000_000),
}


async def test_bodies_that_make_no_sense_are_refused_in_words(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    async with healthy_throughout(frontend):
        answers = {name: await frontend.post(COMPLETIONS, body) for name, body in REFUSED.items()}
    await frontend.settle(base, rss_slack=300 * MIB)
    await frontend.check_works()

    odd = {name: each for name, each in answers.items() if each.status not in {400, 404}}
    assert odd == {}
    assert all(answer.error for answer in answers.values())
    assert engine.busy == 0


SERVED = {
    "members twice": with_raw(b'"max_tokens":1'),
    "huge unknown member": complete(**{"a" * 5_000_000: 1}),
    "many unknown members": complete(**{f"k{number}": 1 for number in range(100_000)}),
    "huge user": complete(user="a" * 10_000_000),
    "huge salt": complete(cache_salt="a" * 10_000_000),
    "huge stop string": complete(stop="a" * 10_000_000),
    "control characters": complete(prompt="\0\r\n\x1b[2J\x7f\u202e"),
    "all planes": complete(prompt="e\u0301\u6f22\U0001f642\U0010ffff\ufdd0\ufeff"),
    "line ends in the id": complete(request_id="a\r\nX-Evil: 1"),
    "zero in the id": complete(request_id="a\0b"),
    "any id": complete(request_id="\u00e9\u6f22\U0001f642"),
    "patterns that grow": complete(structured_outputs={"regex": "(((a?){99}){99}){99}"}),
    "patterns that backtrack": complete(structured_outputs={"regex": "(a+)+$"}),
    "schemas that loop": complete(structured_outputs={"json": {"$ref": "#"}}),
    "schemas elsewhere": complete(structured_outputs={"json": {"$ref": "http://127.0.0.1:1/"}}),
}


async def test_bodies_that_are_only_odd_are_served(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    async with healthy_throughout(frontend):
        answers = {name: await frontend.post(COMPLETIONS, body) for name, body in SERVED.items()}
    await frontend.settle(base, rss_slack=300 * MIB)

    assert {name: each for name, each in answers.items() if each.status != 200} == {}
    assert all("x-evil" not in answer.headers for answer in answers.values())
    assert len(engine.adds) == len(SERVED)


TEMPLATES = {
    "loop": "{% for i in range(10**9) %}a{% endfor %}",
    "loop in loop": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "product": "{{ 'a' * 10**10 }}",
    "power": "{{ (10**9) ** (10**9) }}",
    "power of powers": "{% set ns = namespace(x=10) %}{% for i in range(99) %}"
    "{% set ns.x = ns.x ** 10 %}{% endfor %}{{ ns.x }}",
    "shift by product": "{% set ns = namespace(x=3) %}{% for i in range(99) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "doubling": "{% set ns = namespace(s='a') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "doubling lists": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "format": "{{ '{:>9999999999}'.format(1) }}",
    "format of attributes": "{{ '{0.__class__}'.format(messages) }}",
    "centre": "{{ 'a'.center(10000000000) }}",
    "fill": "{{ '1'.zfill(10000000000) }}",
    "join": "{{ ('a' * 100000).join(['b'] * 100000) }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "indent": "{{ messages|tojson(indent=1000000000) }}",
    "list": "{{ range(10**9)|list|length }}",
    "include": "{% include '/etc/passwd' %}",
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "length": "a" * 10_000_000,
    "syntax": "{% for %}",
    "words": "{{ raise_exception('no') }}",
    "surrogate": "{{ '\\ud800' }}",
}


async def test_templates_of_requests_cannot_hold_the_server(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    answers = {}
    async with healthy_throughout(frontend):
        for name, template in TEMPLATES.items():
            with trio.fail_after(10):
                answers[name] = await frontend.post(CHAT, {**chat, "chat_template": template})
    await frontend.settle(base, rss_slack=100 * MIB)
    await frontend.check_works()

    odd = {name: each for name, each in answers.items() if each.status not in {400, 500}}
    assert odd == {}
    assert all("/root" not in answer.error for answer in answers.values())
    assert len(engine.adds) == 1


async def test_request_ids_of_headers_cannot_split_answers(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    odd = ["a b", "\u00e9", "%0d%0aX-Evil: 1", "a" * 50_000, "", "\t"]
    answers = [await frontend.post(COMPLETIONS, complete(), f"X-Request-Id: {id_}") for id_ in odd]
    split = await frontend.exchange(post(COMPLETIONS, complete(), "X-Request-Id: a\nX-Evil: 1"))
    await frontend.settle(base)

    assert [answer.status for answer in answers] == [200] * len(odd)
    assert all("x-evil" not in answer.headers for answer in answers)
    assert split.startswith(b"HTTP/1.1 400")
    del engine


ODD_PATHS = [
    "/%2e%2e/%2e%2e/etc/passwd",
    "/../../etc/passwd",
    "//health",
    "/health/",
    "/health/../v1/models",
    "/v1//models",
    "/health%00",
    "/health;x",
    "/%ff%fe",
    "/\u00e9",
    "/%",
    "/%zz",
    "/\\..\\..",
    "/static/../vllmfront",
    "*",
]


async def test_odd_paths_lead_nowhere(frontend: Frontend, base: Books) -> None:
    answers = {path: await frontend.ask(get(path)) for path in ODD_PATHS}
    await frontend.settle(base)

    assert {path: each for path, each in answers.items() if each.status not in {400, 404}} == {}
    assert {each.body for each in answers.values()} == {b""}


async def test_two_live_requests_may_have_one_id(
    frontend: Frontend, engine: Engine, base: Books
) -> None:
    """Also while the first is being aborted: what it still says reaches nobody else."""
    body = {**LONG, "request_id": "same", "stream": True}
    async with frontend.connect() as first, frontend.connect() as second:
        await first.send(post(COMPLETIONS, body))
        await first.read_until(b"data: ")
        first.close()
        await second.send(post(COMPLETIONS, body | {"max_tokens": 20}))
        received = await second.read_all()
    await frontend.settle(base)

    assert received.count(b'"id":"cmpl-same"') == received.count(b"data: {")
    assert received.count(b'"finish_reason":"length"') == 1
    assert len({add.internal_id for add in engine.adds}) == 2
