"""A judge that never condemns is worthless: every wrong answer must be found, no right one."""

import json
from typing import Any

import attrs
import pytest

from tests.rl_soak._judge import (
    Attempt,
    LeakWatch,
    Surroundings,
    attempt_complaints,
    window_leaks,
)
from tests.rl_soak._pieces import version_name
from tests.rl_soak._record import ADD, CALL, EXIT, READY, Record
from tests.rl_soak._task import Window
from tests.rl_soak._truth import DEFAULT, History
from vllmfront.testing import Exchange

PROMPT = [400, 500, 600]
NEW = version_name(7, "a", 2)
CALM = Surroundings(modes=frozenset({"keep"}), troubled=False, versions=[DEFAULT])
ABORTING = attrs.evolve(CALM, modes=frozenset({"abort"}))
TROUBLED = attrs.evolve(CALM, troubled=True)
PAUSED = {"code": 503, "reason": "paused", "message": "m"}
INTERRUPTED = {"code": 503, "reason": "interrupted", "message": "m"}


def right_tokens(versions: list[str]) -> list[int]:
    """Return what is said when each token is made by its version."""
    history, tokens = History(PROMPT), []
    for version in versions:
        tokens.append(history.next_token(version))
        history.extend(tokens[-1])
    return tokens


TOKENS = right_tokens([DEFAULT] * 2 + [NEW] * 2)
SPANS = [
    {"version": DEFAULT, "start": 0, "end": 2},
    {"version": NEW, "start": 2, "end": 4},
]


def whole(**fields: Any) -> Attempt:
    choice = {"token_ids": TOKENS, "finish_reason": "length", "weight_versions": SPANS} | fields
    body = json.dumps({"choices": [choice]}).encode()
    return Attempt.read(Exchange(status=200, body=body, complete=True), streamed=False)


def refused(error: dict[str, Any], **headers: str) -> Attempt:
    body = json.dumps({"error": error}).encode()
    found = Exchange(status=error["code"], body=body, complete=True, headers=headers)
    return Attempt.read(found, streamed=False)


def streamed(*events: object, complete: bool = True) -> Attempt:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    body = "".join(f"data: {text}\n\n" for text in texts).encode()
    return Attempt.read(Exchange(status=200, body=body, complete=complete), streamed=True)


def chunk(tokens: list[int], **fields: object) -> dict[str, object]:
    return {"choices": [{"token_ids": tokens, "finish_reason": None, **fields}]}


LAST = chunk(TOKENS[2:], finish_reason="length", weight_versions=SPANS)


def complaints(attempt: Attempt, around: Surroundings = CALM, wanted: int = 4) -> list[str]:
    return attempt_complaints(attempt, wanted, History(PROMPT), around)


def test_right_answers_are_right() -> None:
    assert complaints(whole()) == []
    assert complaints(streamed(chunk(TOKENS[:2]), LAST, "[DONE]")) == []
    assert complaints(whole(finish_reason="abort"), ABORTING, wanted=9) == []
    assert complaints(refused(PAUSED, **{"retry-after": "1"}), ABORTING) == []
    assert complaints(refused(INTERRUPTED, **{"retry-after": "1"}), TROUBLED) == []


@pytest.mark.parametrize(
    ("attempt", "around", "why"),
    [
        (whole(token_ids=TOKENS[:3]), CALM, "do not cover 3 tokens"),
        (whole(token_ids=[*TOKENS[:3], TOKENS[3] ^ 1]), CALM, f"and {NEW} says {TOKENS[3]}"),
        (whole(weight_versions=[{**SPANS[0], "end": 4}]), CALM, f"{DEFAULT} says"),
        (whole(weight_versions=None), CALM, "nothing says what made"),
        (whole(finish_reason="abort"), CALM, "no pause does that"),
        (whole(finish_reason="stop"), CALM, "it ends by stop"),
        (refused(PAUSED, **{"retry-after": "1"}), CALM, "no pause does that"),
        (refused(PAUSED), ABORTING, "without Retry-After"),
        (refused(INTERRUPTED, **{"retry-after": "1"}), CALM, "without a reason"),
        (refused({"code": 500, "message": "m"}), TROUBLED, "worth another try"),
        (streamed(chunk(TOKENS[:2]), {"error": PAUSED}, "[DONE]"), ABORTING, "after 2 tokens"),
        (streamed(chunk(TOKENS[:2]), LAST), CALM, "without [DONE]"),
        (streamed(chunk(TOKENS[:2]), LAST, LAST, "[DONE]"), CALM, "goes on after its end"),
        (streamed(chunk(TOKENS[:2]), complete=False), CALM, "the connection broke"),
        (
            streamed(chunk([TOKENS[0] ^ 1]), {"error": INTERRUPTED}, "[DONE]"),
            TROUBLED,
            "which none of",
        ),
    ],
)
def test_what_is_wrong_is_found(attempt: Attempt, around: Surroundings, why: str) -> None:
    assert any(why in complaint for complaint in complaints(attempt, around))


def test_too_few_and_too_many_tokens_are_found() -> None:
    assert complaints(whole(), wanted=5) == ["4 tokens of 5"]
    assert complaints(whole(finish_reason="abort"), ABORTING, wanted=3) == ["4 tokens of 3"]


def heard(*events: tuple[float, int, int, str, str]) -> list[str]:
    watch = LeakWatch()
    return list(
        watch.hear(
            Record(time=time, rank=rank, life=life, event=event, name=name)
            for time, rank, life, event, name in events
        )
    )


def test_a_request_after_a_pause_is_a_leak_until_the_resume() -> None:
    pause, resume = (1, 0, 0, CALL, "pause_generation"), (2, 0, 0, CALL, "resume_scheduler")

    assert heard((0, 0, 0, ADD, "r"), pause, resume, (3, 0, 0, ADD, "r")) == []
    assert len(heard(pause, (1.5, 0, 0, ADD, "r"), resume)) == 1


def test_an_engine_that_comes_back_while_others_are_paused_must_hear_nothing() -> None:
    ready, pause = (0, 0, 0, READY, ""), (1, 1, 0, CALL, "pause_generation")
    back = (2, 0, 1, READY, "")

    assert len(heard(ready, pause, back, (3, 0, 1, ADD, "r"))) == 1
    assert heard(ready, pause, (1.5, 1, 0, EXIT, ""), back, (3, 0, 1, ADD, "r")) == []


def test_a_request_within_a_window_is_a_leak() -> None:
    assert list(window_leaks([Window(1, 2)], [(0.5, "a"), (2.5, "b")])) == []
    assert len(list(window_leaks([Window(1, 2)], [(1.5, "a")]))) == 1
