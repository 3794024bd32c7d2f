"""Recorded conversations, played again with our frontend in the recorded one's place.

Where vllm-rs serves a request, our frames and answers must equal its own; where only the Python
server does, the Python server's. What may differ is listed in deviations.py.
"""

import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import attrs
import msgpack
import pytest
import trio

from tests.replay import deviations
from tests.replay.deviations import Deviation, normalised
from tests.replay.engine import Performance
from tests.replay.frontend import Answer, open_frontend
from tests.replay.recording import Recording, Scenario, load_recording
from vllmfront.engine.wire import MessageType

COMPATIBILITY = pathlib.Path(__file__).parents[2] / "docs" / "compatibility.md"
SECONDS = 10.0
"""For one conversation, which takes some milliseconds."""

RUST_REFUSES = {
    "plain-0.33": {"chat-n2", "completion-two-prompts"},
    "completions-0.33": {"completion-two-prompts"},
    "completions-0.32": {"completion-two-prompts", "completion-choice"},
}
"""What only the Python server serves, by set of recordings."""

REFUSED_BEFORE_THE_ENGINE = {"completion-bad-regex"}
"""What recorded frontends leave to the engine to refuse, and we refuse in our own words."""

EVENTS_BEFORE_LEAVING = {"abort-on-disconnect": 4}


@attrs.frozen
class Case:
    """One scenario of one recording, and what may differ."""

    recording: str
    scenario: str
    answers: Sequence[Deviation]
    frames: Sequence[Deviation]

    def __str__(self) -> str:
        return f"{self.recording}-{self.scenario}"


@functools.cache
def recording(name: str) -> Recording:
    return load_recording(name)


def cases() -> list[Case]:
    found = []
    for name, by_python in RUST_REFUSES.items():
        older = name.endswith("0.32")
        for scenario in recording(f"{name}-rust").scenarios:
            if scenario in REFUSED_BEFORE_THE_ENGINE:
                continue
            if scenario in by_python:
                case = Case(
                    f"{name}-python",
                    scenario,
                    deviations.ANSWERS_AS_PYTHON,
                    deviations.FRAMES_AS_PYTHON,
                )
            elif older:
                case = Case(
                    f"{name}-rust",
                    scenario,
                    deviations.ANSWERS_AS_OLDER_RUST,
                    deviations.FRAMES_AS_OLDER_RUST,
                )
            else:
                case = Case(
                    f"{name}-rust",
                    scenario,
                    deviations.ANSWERS_AS_RUST,
                    deviations.FRAMES_AS_RUST,
                )
            found.append(case)
    return found


@pytest.mark.parametrize("case", cases(), ids=str)
async def test_conversations_go_as_recorded(case: Case) -> None:
    played = recording(case.recording)
    scenario = played.scenarios[case.scenario]
    leave_after = EVENTS_BEFORE_LEAVING.get(scenario.name)

    async with open_frontend(played) as frontend:
        performance = frontend.engine.play(scenario)
        with trio.fail_after(SECONDS):
            answer = await frontend.ask(scenario, leave_after=leave_after)
            await performance.complete.wait()
        books = frontend.client.snapshot()

    assert our_frames(performance, case.frames) == recorded_frames(performance, case.frames)
    assert answer.status == scenario.status
    assert normalised(our_answer(answer), case.answers) == normalised(
        recorded_answer(scenario), case.answers
    )
    assert (books.requests, books.engine_requests) == (0, 0)
    assert frontend.engine.unasked == []


@pytest.mark.parametrize(
    "case", [case for case in cases() if case.scenario not in EVENTS_BEFORE_LEAVING], ids=str
)
async def test_updates_that_arrive_together_say_the_same(case: Case) -> None:
    played = recording(case.recording)
    scenario = played.scenarios[case.scenario]

    async with open_frontend(played, paced=False) as frontend:
        performance = frontend.engine.play(scenario)
        with trio.fail_after(SECONDS):
            answer = await frontend.ask(scenario)
            await performance.complete.wait()

    assert assembled(normalised(our_answer(answer), case.answers)) == assembled(
        normalised(recorded_answer(scenario), case.answers)
    )


@pytest.mark.parametrize("name", ["completions-0.33-rust", "completions-0.32-rust"])
@pytest.mark.parametrize("scenario_name", sorted(REFUSED_BEFORE_THE_ENGINE))
async def test_bad_constraints_never_reach_the_engine(name: str, scenario_name: str) -> None:
    played = recording(name)
    scenario = played.scenarios[scenario_name]

    async with open_frontend(played) as frontend:
        performance = frontend.engine.play(scenario)
        with trio.fail_after(SECONDS):
            answer = await frontend.ask(scenario)

    error = json.loads(answer.body)["error"]
    assert (answer.status, error["type"], error["param"]) == (
        400,
        "BadRequestError",
        "structured_outputs",
    )
    assert performance.heard == []


def test_every_deviation_is_documented() -> None:
    told = COMPATIBILITY.read_text()
    groups = [
        deviations.ANSWERS_AS_OLDER_RUST,
        deviations.ANSWERS_AS_PYTHON,
        deviations.FRAMES_AS_OLDER_RUST,
        deviations.FRAMES_AS_PYTHON,
    ]

    names = {deviation.name for group in groups for deviation in group}

    assert {name for name in names if f"| {name} |" not in told} == set()


def our_frames(performance: Performance, tolerated: Sequence[Deviation]) -> list[Any]:
    return [_comparable(frames, tolerated) for frames in performance.heard]


def recorded_frames(performance: Performance, tolerated: Sequence[Deviation]) -> list[Any]:
    """Return what the recorded frontend sent, in our ids."""
    return [_comparable(frames, tolerated) for frames in performance.translated_requests()]


def _comparable(frames: Sequence[bytes], tolerated: Sequence[Deviation]) -> list[Any]:
    kind, payload, *arrays = frames
    value = msgpack.unpackb(payload, strict_map_key=False)
    if kind == MessageType.ADD.value:
        value = normalised(value, tolerated)
    return [kind, value, *arrays]


def our_answer(answer: Answer) -> Any:
    return _read(answer.content_type, answer.body)


def recorded_answer(scenario: Scenario) -> Any:
    return _read(scenario.content_type, scenario.answer)


def assembled(answer: Any) -> Any:
    """Put a chat stream together, as clients do; other answers are whole already."""
    if not isinstance(answer, list):
        return answer
    content, logprobs, rest = "", [], []
    for event in answer[:-1]:
        for choice in event["choices"]:
            content += choice["delta"].pop("content", "")
            logprobs += (choice.pop("logprobs", None) or {}).get("content", [])
            rest += [item for item in choice["delta"].items() if item not in rest]
            rest += (
                [("finish_reason", choice["finish_reason"])] if "finish_reason" in choice else []
            )
    return content, logprobs, rest, answer[-2:]


def _read(content_type: str, body: bytes) -> Any:
    if content_type == "text/event-stream":
        events = [block.removeprefix(b"data: ") for block in body.split(b"\n\n") if block]
        return ["[DONE]" if event == b"[DONE]" else json.loads(event) for event in events]
    assert content_type == "application/json"
    return json.loads(body)
