"""A stream whose engine is lost half-way is, byte for byte, the stream of an engine that lives."""

import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
import trio.testing

from tests.api.openai._harness import CHAT, COMPLETIONS, PATIENCE, Api, chat, completion, open_api
from vllmfront.api.http import SHUTDOWN
from vllmfront.engine import FinishReason, Logprobs, PrefillStats
from vllmfront.engine.wire import Add
from vllmfront.models import ModelDescription
from vllmfront.text import Tokenizer

TEXT = "Hello \N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL} \N{GRINNING FACE} world, and more."
GREEDY = {"temperature": 0, "max_tokens": 60, "stream": True}
ASKED = [
    (CHAT, chat(**GREEDY)),
    (CHAT, chat(**GREEDY, stream_options={"include_usage": True})),
    (CHAT, chat(**GREEDY, stream_options={"include_usage": True, "continuous_usage_stats": True})),
    (CHAT, chat(**GREEDY, logprobs=True, top_logprobs=1)),
    (CHAT, chat(**GREEDY, stop=["world"])),
    (CHAT, chat(**GREEDY, return_token_ids=True)),
    (COMPLETIONS, completion(**GREEDY, logprobs=1, echo=False)),
    (COMPLETIONS, completion(**GREEDY, stop=[", and"], include_stop_str_in_output=True)),
    (COMPLETIONS, completion(**GREEDY, echo=True)),
]
WHOLE = [(path, {**body, "stream": False}) for path, body in ASKED if "stream_options" not in body]


@pytest.fixture
async def kept(model: ModelDescription, tokenizer: Tokenizer) -> AsyncGenerator[Api]:
    """Routes whose requests wait for another engine."""
    async with open_api(model, tokenizer, recovery_wait=30) as api:
        yield api


class Script:
    """An engine that says the same whoever it is: the text, one token a message."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.ids = api.encode(TEXT)

    async def say(self, add: Add, start: int, end: int) -> None:
        """Say tokens *start* to *end*; with the last one goes the reason to stop."""
        sampling = add.request.sampling
        assert sampling is not None
        for place in range(start, end):
            token = self.ids[place]
            last = place == len(self.ids) - 1
            rows = [[token, 3]], [[-0.25, -1.5]], [1]
            prompt = len(add.request.prompt_token_ids)
            self._api.say_output(
                add,
                new_token_ids=[token],
                logprobs=None if sampling.logprobs is None else Logprobs(*rows),
                prefill_stats=PrefillStats(num_prompt_tokens=prompt, num_cached_tokens=prompt - 1)
                if place == start
                else None,
                finish_reason=FinishReason.LENGTH if last else None,
            )
            await self._api.heard(add, place + 1)


async def said(api: Api, path: str, body: dict[str, Any], cut: int | None) -> bytes:
    """Return the answer; with *cut*, of an engine that is replaced after so many tokens."""
    script = Script(api)
    call = api.post(path, body)
    add = await next_add(api)
    if cut is not None:
        await script.say(add, 0, cut)
        prompt = list(add.request.prompt_token_ids)
        await api.replace_engine()
        if call.done.is_set():  # a stop string had ended it before
            return normal(call.writer.body)
        add = await next_add(api)
        assert add.request.prompt_token_ids == [*prompt, *script.ids[:cut]]
    await script.say(add, cut or 0, len(script.ids))
    writer = await call.finished()
    assert writer.status == 200
    return normal(writer.body)


async def next_add(api: Api) -> Add:
    """Return what the engine is asked for next; of what came before, aborts are left over."""
    with trio.fail_after(PATIENCE):
        while not isinstance(asked := await api.engine.receive(), Add):
            pass
    return asked


def normal(body: bytes) -> bytes:
    """Return *body* without what differs between any two answers."""
    return re.sub(rb'"(id|created)":("[^"]*"|\d+)', rb'"\1":0', body)


@pytest.mark.parametrize(("path", "body"), [*ASKED, *WHOLE])
async def test_nobody_can_tell_where_the_engine_was_lost(
    kept: Api, path: str, body: dict[str, Any]
) -> None:
    whole = await said(kept, path, body, None)
    length = len(kept.encode(TEXT))

    for cut in range(1, length, 4):
        assert await said(kept, path, body, cut) == whole, cut
    assert kept.client.num_in_flight == 0
    assert kept.client.metrics.snapshot().continued_requests > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_why_a_request_was_cut_off_while_it_waited_is_counted(
    kept: Api, stream: bool
) -> None:
    kept.engine.close()
    await kept.client.wait_lost()
    call = kept.post(COMPLETIONS, completion(["one", "two"], stream=stream))
    await trio.testing.wait_all_tasks_blocked()
    assert kept.client.num_waiting == 1
    call.leave(SHUTDOWN)
    await trio.testing.wait_all_tasks_blocked()

    assert kept.client.metrics.snapshot().causes["shutdown"] == 2
    assert kept.client.num_in_flight == 0
