"""Answers in a form that two servers can be compared by: no ids, no times, no framing noise."""

import json
import re
from typing import Any

import attrs

_VOLATILE = frozenset({"id", "created"})
_REQUEST_ID = re.compile(r"\b(cmpl|chatcmpl)-[0-9a-f]{8}\b")
_POSITION = re.compile(r" at line \d+ column \d+")
"""Where a JSON parser stood; ours does not count lines."""

_BOUNDS = re.compile(r"(range|length) \[\{(.*)\}\]")
"""The peer prints the bounds of a rule in an order that changes from run to run."""


@attrs.frozen
class Answer:
    """One HTTP answer, normalised; equal when clients could not tell the servers apart."""

    status: int
    content_type: str
    body: Any
    """JSON value, list of stream events, or text."""


def normalise(status: int, content_type: str, body: bytes) -> Answer:
    """Take away what differs between any two runs of one server."""
    kind = content_type.partition(";")[0]
    if kind == "text/event-stream":
        return Answer(status, kind, [_event(block) for block in body.split(b"\n\n") if block])
    if kind == "application/json" and body:
        return Answer(status, kind, _without_volatile(json.loads(body)))
    return Answer(status, kind, body.decode())


def _event(block: bytes) -> Any:
    data = block.removeprefix(b"data: ")
    return "[DONE]" if data == b"[DONE]" else _without_volatile(json.loads(data))


def _without_volatile(value: Any) -> Any:
    if isinstance(value, str):
        return _steady(value)
    if isinstance(value, dict):
        return {k: _without_volatile(v) for k, v in value.items() if k not in _VOLATILE}
    if isinstance(value, list):
        return [_without_volatile(v) for v in value]
    return value


def as_peer(answer: Answer) -> Answer:
    """Undo the deviations that every stream of ours has (docs/compatibility.md, streams)."""
    if answer.content_type != "text/event-stream":
        return answer
    return attrs.evolve(answer, body=[_event_as_peer(event) for event in answer.body])


def _event_as_peer(event: Any) -> Any:
    if not isinstance(event, dict) or "choices" not in event:
        return event
    return {**event, "choices": [_choice_as_peer(choice) for choice in event["choices"]]}


def _choice_as_peer(choice: dict[str, Any]) -> dict[str, Any]:
    choice = {
        k: v for k, v in choice.items() if not (k in {"finish_reason", "logprobs"} and v is None)
    }
    if choice.get("delta") == {"role": "assistant", "content": ""}:
        choice["delta"] = {"role": "assistant"}
    return choice


def _steady(text: str) -> str:
    if ": Validation error: " in text:
        text = "\n".join(sorted(text.split("\n")))  # the peer tells them in any order
    text = _POSITION.sub("", _REQUEST_ID.sub(r"\1-ID", text))
    return _BOUNDS.sub(lambda m: f"{m[1]} [{sorted(m[2].split(', '))}]", text)
