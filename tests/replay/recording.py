"""Recorded conversations, read from their files (format: data/README.md)."""

import base64
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from vllmfront.engine import LoraRequest

DATA = pathlib.Path(__file__).parent / "data"

_TOO_LONG = "The quick brown fox jumps over the lazy dog. " * 160


@attrs.frozen
class Message:
    """One message between frontend and engine."""

    from_engine: bool
    frames: Sequence[bytes]


@attrs.frozen(kw_only=True)
class Scenario:
    """One HTTP exchange and the messages it caused."""

    name: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    messages: Sequence[Message]
    status: int
    content_type: str
    answer: bytes

    @property
    def requests(self) -> list[Sequence[bytes]]:
        """What the frontend sent, in order."""
        return [message.frames for message in self.messages if not message.from_engine]


@attrs.frozen
class Recording:
    """One file: how an engine joined its frontend, and what it was asked."""

    name: str
    greetings: Sequence[bytes]
    """What the engine sent on the handshake socket: HELLO, READY."""

    registration: bytes
    adapters: Sequence[LoraRequest]
    """What the frontend was told to load at its start."""

    scenarios: Mapping[str, Scenario]


def load_recording(name: str) -> Recording:
    """Read one file of the data folder."""
    greetings: list[bytes] = []
    registration: bytes | None = None
    adapters: Sequence[LoraRequest] = ()
    scenarios: dict[str, Scenario] = {}
    request: dict[str, Any] | None = None
    messages: list[Message] = []
    for line in (DATA / f"{name}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        mark = entry.get("mark")
        if mark == "start":
            adapters = _adapters(entry["frontend_args"])
        elif mark == "request":
            request, messages = entry, []
        elif mark == "response":
            assert request is not None
            scenarios[entry["name"]] = _scenario(request, messages, entry)
        elif mark is None:
            frames = [base64.b64decode(frame) for frame in entry["frames"]]
            from_engine = entry["dir"] == "E>F"
            if entry["ch"] == "handshake":
                greetings += frames if from_engine else []
            elif entry["ch"] == "input0" and from_engine:
                registration = frames[0]
            messages.append(Message(from_engine, frames))
    assert registration is not None
    return Recording(name, greetings, registration, adapters, scenarios)


def _adapters(words: Sequence[str]) -> Sequence[LoraRequest]:
    """Return what a command line says of adapters, whose ids are still to be given."""
    if "--lora-modules" not in words:
        return ()
    name, _, path = words[words.index("--lora-modules") + 1].partition("=")
    return [LoraRequest(name=name, int_id=0, path=path)]


def _scenario(
    request: dict[str, Any], messages: Sequence[Message], response: dict[str, Any]
) -> Scenario:
    headers = request["headers"]
    body = request["body"]
    if isinstance(body, str):
        assert request["name"] == "completion-too-long"
        body = {"model": "tiny", "prompt": _TOO_LONG, "temperature": 0, "max_tokens": 1}
    return Scenario(
        name=request["name"],
        method=request["method"],
        path=request["path"],
        headers=headers[0] if headers else {},
        body=b"" if body is None else json.dumps(body).encode(),
        messages=messages,
        status=response["status"],
        content_type=response["headers"]["content-type"].partition(";")[0],
        answer=response["body"].encode(),
    )
