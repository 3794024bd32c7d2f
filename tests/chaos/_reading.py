"""What a client makes of the bytes that it got: the choices, the end, and what is wrong with it."""

import json
from typing import Any

import attrs

from tests.chaos._asks import Ask
from vllmfront.testing import Exchange

DONE = "[DONE]"


@attrs.define
class Choice:
    """One choice as far as it came."""

    text: str = ""
    tokens: list[int] = attrs.field(factory=list)
    logprobs: int = 0
    """Tokens that were described."""

    finish_reason: str | None = None


@attrs.define
class Reading:
    """An answer, whole or in events, and what breaks its form."""

    choices: dict[int, Choice] = attrs.field(factory=dict)
    prompt: list[int] | None = None
    error: dict[str, Any] | None = None
    completion_tokens: int | None = None
    done: bool = False
    faults: list[str] = attrs.field(factory=list)


def read(ask: Ask, found: Exchange) -> Reading:
    """Read an exchange that got a response."""
    if found.status == 200 and ask.streamed:
        return _read_events(found)
    reading = Reading()
    if not found.complete:
        return reading
    try:
        body = json.loads(found.body)
    except ValueError:
        reading.faults.append(f"the body is no JSON: {found.body[:80]!r}")
        return reading
    if "error" in body:
        reading.error = body["error"]
    else:
        _take(reading, body)
    return reading


def _read_events(found: Exchange) -> Reading:
    reading = Reading()
    *events, rest = found.body.split(b"\n\n")
    if found.complete and rest:
        reading.faults.append(f"the stream ends within an event: {rest[:80]!r}")
    for event in events:
        if event.startswith(b":"):
            continue
        text = event.decode("utf-8", "strict")
        if not text.startswith("data: "):
            reading.faults.append(f"this is no event: {text[:80]!r}")
            continue
        _read_event(reading, text.removeprefix("data: "))
    return reading


def _read_event(reading: Reading, data: str) -> None:
    if reading.done:
        reading.faults.append(f"an event follows the end: {data[:80]!r}")
    elif data == DONE:
        reading.done = True
    elif reading.error is not None:
        reading.faults.append(f"an event follows an error: {data[:80]!r}")
    else:
        body = json.loads(data)
        if "error" in body:
            reading.error = body["error"]
        else:
            _take(reading, body)


def _take(reading: Reading, body: dict[str, Any]) -> None:
    """Add an answer, or a chunk of one."""
    prompt = body.get("prompt_token_ids")
    if body.get("usage"):
        reading.completion_tokens = body["usage"]["completion_tokens"]
    for one in body["choices"]:
        choice = reading.choices.setdefault(one["index"], Choice())
        if choice.finish_reason is not None:
            reading.faults.append(f"choice {one['index']} goes on after its end")
        said = one.get("delta") or one.get("message") or one
        choice.text += said.get("content") or said.get("text") or ""
        choice.tokens += one.get("token_ids") or ()
        choice.logprobs += _described(one.get("logprobs"))
        choice.finish_reason = one.get("finish_reason") or choice.finish_reason
        prompt = prompt or one.get("prompt_token_ids")
    if prompt:
        if reading.prompt is not None and reading.prompt != prompt:
            reading.faults.append("the prompt changes")
        reading.prompt = prompt


def _described(logprobs: dict[str, Any] | None) -> int:
    if not logprobs:
        return 0
    return len(logprobs.get("content") or logprobs.get("tokens") or ())
