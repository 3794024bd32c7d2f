"""Comments on silent streams go to those that have begun and not ended, and to no others."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
import trio

from tests.api.openai._harness import CHAT, COMPLETIONS, Api, chat, completion, open_api
from vllmfront.models import ModelDescription
from vllmfront.text import Tokenizer

INTERVAL = 0.02
COMMENT = b": keep-alive\n\n"
STREAM: dict[str, Any] = {"stream": True, "max_tokens": 3, "temperature": 1}

each_way = pytest.mark.parametrize(
    ("path", "body", "known"),
    [
        (CHAT, chat(**STREAM), True),
        (CHAT, chat(**STREAM), False),
        (CHAT, chat(**STREAM, n=2), False),
        (COMPLETIONS, completion(**STREAM), False),
    ],
    ids=["chat begun at once", "chat", "two choices", "completion"],
)


@pytest.fixture
async def kept(model: ModelDescription, tokenizer: Tokenizer) -> AsyncGenerator[Api]:
    opened = open_api(model, tokenizer, recovery_wait=30, keep_alive_interval=INTERVAL)
    async with opened as api:
        yield api


async def ask_once(api: Api, path: str, body: Mapping[str, Any]) -> None:
    call = api.post(path, body)
    await api.say_slowly(await api.next_add(), [2046, 198, 500])
    await call.finished()


@each_way
async def test_a_request_that_has_no_engine_yet_has_no_stream(
    kept: Api, path: str, body: Mapping[str, Any], *, known: bool
) -> None:
    if known:
        await ask_once(kept, path, body)
    kept.engine.close()
    await kept.client.wait_lost()
    call = kept.post(path, body)
    await trio.sleep(INTERVAL * 4)
    before = call.writer.started
    await kept.replace_engine()
    for _ in range(body.get("n", 1)):
        await kept.say_slowly(await kept.next_add(), [2046, 198, 500])
    writer = await call.finished()

    assert not before
    assert writer.status == 200
    assert writer.body.endswith(b"data: [DONE]\n\n")


@each_way
async def test_a_stream_that_was_left_is_forgotten(
    kept: Api, path: str, body: Mapping[str, Any], *, known: bool
) -> None:
    if known:
        await ask_once(kept, path, body)
    call = kept.post(path, body)
    await kept.next_add()
    await trio.sleep(INTERVAL * 4)
    call.leave()
    writer = await call.finished()
    pieces = list(writer.pieces)
    await trio.sleep(INTERVAL * 4)

    assert COMMENT in pieces
    assert writer.pieces == pieces
