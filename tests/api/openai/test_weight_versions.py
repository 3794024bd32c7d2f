"""Which weights made which tokens of an answer."""

import pytest

from tests.api.openai._harness import CHAT, COMPLETIONS, Api, chat, completion
from vllmfront.api.openai._weight_versions import VersionSpans
from vllmfront.engine import EngineOutput, FinishReason
from vllmfront.engine.wire import Add, encode_row, plain_row

ASKED = {"return_weight_versions": True, "max_tokens": 6}


def say(api: Api, add: Add, tokens: list[int], version: str, *, last: bool = False) -> None:
    """Let the engine send tokens made by *version*, as plain ones but for the last."""
    row = plain_row(add.internal_id, tokens)
    if last:
        output = EngineOutput(new_token_ids=tokens, finish_reason=FinishReason.LENGTH)
        row = encode_row(add.internal_id, output)
    api.engine.send_rows([row], weight_version=version)


async def answer(api: Api, path: str, stream: bool) -> object:
    """Return the spans of an answer whose weights change after three tokens."""
    ask = chat if path == CHAT else completion
    call = api.post(path, ask(stream=stream, **ASKED))
    add = await api.next_add()
    first = encode_row(add.internal_id, EngineOutput(new_token_ids=[300]))
    api.engine.send_rows([first], weight_version="old")
    say(api, add, [301, 302], "old")
    await api.heard(add, 3)
    say(api, add, [303], "new")
    say(api, add, [304, 305], "new", last=True)
    written = await call.finished()
    if not stream:
        return written.json["choices"][0]["weight_versions"]
    events = [event for event in written.events if isinstance(event, dict) and event["choices"]]
    assert not any("weight_versions" in event["choices"][0] for event in events[:-1])
    return events[-1]["choices"][0]["weight_versions"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_border_between_versions_is_where_it_was(
    api: Api, path: str, stream: bool
) -> None:
    assert await answer(api, path, stream) == [
        {"version": "old", "start": 0, "end": 3},
        {"version": "new", "start": 3, "end": 6},
    ]


async def test_messages_that_wait_together_are_told_apart(api: Api, stream: bool) -> None:
    call = api.post(COMPLETIONS, completion(stream=stream, **ASKED))
    add = await api.next_add()
    first = encode_row(add.internal_id, EngineOutput(new_token_ids=[300]))
    api.engine.send_rows([first], weight_version="a")
    for version in ("a", "b", "b", "c"):
        say(api, add, [301], version)
    say(api, add, [302], "c", last=True)
    written = await call.finished()

    choice = written.events[-2]["choices"][0] if stream else written.json["choices"][0]
    assert choice["weight_versions"] == [
        {"version": "a", "start": 0, "end": 2},
        {"version": "b", "start": 2, "end": 4},
        {"version": "c", "start": 4, "end": 6},
    ]


async def test_who_does_not_ask_is_not_told(api: Api) -> None:
    call = api.post(COMPLETIONS, completion(max_tokens=1))
    add = await api.next_add()
    say(api, add, [300], "old", last=True)

    assert "weight_versions" not in (await call.finished()).json["choices"][0]


def test_versions_that_made_nothing_have_no_span() -> None:
    spans = VersionSpans()
    for version, count in (("a", 0), ("b", 0), ("b", 2), ("c", 4), ("b", 4), (None, 5), ("d", 6)):
        spans.note(version, count)

    assert spans.json(6) == b'[{"version":"b","start":0,"end":6}]'


def test_without_a_word_of_the_engine_nothing_is_known() -> None:
    assert VersionSpans().json(3) == b"null"
    assert VersionSpans().json(0) == b"[]"
