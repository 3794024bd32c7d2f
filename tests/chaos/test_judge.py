"""A judge that never condemns is worthless: every wrong answer must be found, no right one."""

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.chaos._asks import Ask
from tests.chaos._judge import Circumstances, judge
from tests.chaos._oracle import Oracle
from vllmfront.testing import ClientFault, ClientFaultKind, Exchange, FaultKind

ORACLE = Oracle()
PROMPT = [500, 501, 300]
CALM = Circumstances()
TROUBLED = Circumstances(troubled=True, breaks=3)
RETRY = {"message": "m", "type": "ServiceUnavailableError", "code": 503, "reason": "recovering"}
BROKEN = {"message": "m", "type": "BadRequestError", "code": 400}
TIMED_OUT = {"message": "m", "type": "GatewayTimeoutError", "code": 504, "reason": "timed_out"}

STREAM = Ask(id="r", prompt=PROMPT, streamed=True, max_tokens=8, ignore_eos=True, usage=True)
WHOLE = attrs.evolve(STREAM, streamed=False)
CHAT = attrs.evolve(STREAM, prompt=None, text="hi", choices=2, greedy=False, logprobs=True)

Event = dict[str, Any]


def chunk(index: int, text: str, tokens: list[int], finish: str | None, ask: Ask) -> Event:
    said = {"delta": {"content": text}} if ask.is_chat else {"text": text}
    described: Event = (
        {"content": [{}] * len(tokens)} if ask.is_chat else {"tokens": [""] * len(tokens)}
    )
    choice = {"index": index, "token_ids": tokens, "finish_reason": finish} | said
    if ask.logprobs:
        choice["logprobs"] = described
    return {"choices": [choice]}


def events_of(ask: Ask) -> list[Event]:
    """Return the events of the right answer, a token each."""
    truth = ORACLE.truth(ask, PROMPT)
    found: list[Event] = []
    for index in range(ask.choices):
        for place, token in enumerate(truth.tokens):
            before = ORACLE.decode(truth.tokens[:place])
            after = ORACLE.decode(truth.tokens[: place + 1])
            last = place + 1 == len(truth.tokens)
            reason = truth.finish_reason if last else None
            found.append(chunk(index, after[len(before) :], [token], reason, ask))
    found[0]["prompt_token_ids"] = PROMPT
    if ask.usage:
        usage = {"completion_tokens": len(truth.tokens) * ask.choices}
        found.append({"choices": [], "usage": usage})
    return found


def streamed(events: list[Event | str], *, complete: bool = True, left: bool = False) -> Exchange:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    body = "".join(f"data: {text}\n\n" for text in texts).encode()
    return Exchange(status=200, body=body, complete=complete, left=left)


def whole(body: Event, status: int = 200, **headers: str) -> Exchange:
    return Exchange(status=status, headers=headers, body=json.dumps(body).encode(), complete=True)


def right(ask: Ask) -> Exchange:
    if ask.streamed:
        return streamed([*events_of(ask), "[DONE]"])
    truth = ORACLE.truth(ask, PROMPT)
    answer = chunk(0, truth.text, list(truth.tokens), truth.finish_reason, ask)
    return whole(answer | {"usage": {"completion_tokens": len(truth.tokens)}})


def violations(ask: Ask, found: Exchange, around: Circumstances = CALM) -> list[str]:
    return judge(ask, found, around, ORACLE).violations


@pytest.mark.parametrize("ask", [STREAM, WHOLE, CHAT])
@pytest.mark.parametrize("around", [CALM, TROUBLED])
def test_a_right_answer_is_right(ask: Ask, around: Circumstances) -> None:
    verdict = judge(ask, right(ask), around, ORACLE)

    assert verdict.violations == []
    assert verdict.outcome == "answered"


def doubled(events: list[Event]) -> list[Event | str]:
    return [*events[:3], events[2], *events[3:], "[DONE]"]


def missing(events: list[Event]) -> list[Event | str]:
    return [*events[:3], *events[4:], "[DONE]"]


def exchanged(events: list[Event]) -> list[Event | str]:
    return [*events[:2], events[3], events[2], *events[4:], "[DONE]"]


def wrong_token(events: list[Event]) -> list[Event | str]:
    events[2]["choices"][0]["token_ids"][0] += 1
    return [*events, "[DONE]"]


def wrong_text(events: list[Event]) -> list[Event | str]:
    choice = events[2]["choices"][0]
    if "text" in choice:
        choice["text"] += "x"
    else:
        choice["delta"]["content"] += "x"
    return [*events, "[DONE]"]


def cut_short(events: list[Event]) -> list[Event | str]:
    return [*events[:5], "[DONE]"]


def ended_early(events: list[Event]) -> list[Event | str]:
    events[4]["choices"][0]["finish_reason"] = "stop"
    return [*events[:5], "[DONE]"]


def wrong_reason(events: list[Event]) -> list[Event | str]:
    events[7]["choices"][0]["finish_reason"] = "stop"
    return [*events, "[DONE]"]


def goes_on(events: list[Event]) -> list[Event | str]:
    return [*events[:8], chunk(0, "", [], None, STREAM), *events[8:], "[DONE]"]


def wrong_usage(events: list[Event]) -> list[Event | str]:
    events[-1]["usage"]["completion_tokens"] += 1
    return [*events, "[DONE]"]


def without_done(events: list[Event]) -> list[Event | str]:
    return [*events]


def done_twice(events: list[Event]) -> list[Event | str]:
    return [*events, "[DONE]", "[DONE]"]


def two_errors(events: list[Event]) -> list[Event | str]:
    return [*events[:3], {"error": RETRY}, {"error": RETRY}, "[DONE]"]


def error_without_done(events: list[Event]) -> list[Event | str]:
    return [*events[:3], {"error": RETRY}]


def error_after_wrong_words(events: list[Event]) -> list[Event | str]:
    return [*events[:3], events[2], {"error": RETRY}, "[DONE]"]


def error_that_ends_all(events: list[Event]) -> list[Event | str]:
    return [*events[:3], {"error": BROKEN}, "[DONE]"]


def error_without_words(events: list[Event]) -> list[Event | str]:
    return [*events[:3], {"error": {"code": 503}}, "[DONE]"]


def deadline_of_nobody(events: list[Event]) -> list[Event | str]:
    return [*events[:3], {"error": TIMED_OUT}, "[DONE]"]


@pytest.mark.parametrize("ask", [STREAM, CHAT])
@pytest.mark.parametrize(
    "spoil",
    [
        doubled,
        missing,
        exchanged,
        wrong_token,
        wrong_text,
        cut_short,
        ended_early,
        wrong_reason,
        goes_on,
        wrong_usage,
        without_done,
        done_twice,
        two_errors,
        error_without_done,
        error_after_wrong_words,
        error_that_ends_all,
        error_without_words,
        deadline_of_nobody,
    ],
)
def test_a_wrong_stream_is_found(
    ask: Ask, spoil: Callable[[list[Event]], list[Event | str]]
) -> None:
    # Trouble excuses errors, and nothing else.
    assert violations(ask, streamed(spoil(events_of(ask))), TROUBLED) != []


def test_an_error_event_needs_a_reason() -> None:
    found = streamed([*events_of(STREAM)[:3], {"error": RETRY}, "[DONE]"])

    assert violations(STREAM, found, TROUBLED) == []
    assert violations(STREAM, found, CALM) != []


def test_a_refusal_needs_a_reason_and_a_hint() -> None:
    found = whole({"error": RETRY}, 503, **{"retry-after": "5"})

    assert violations(WHOLE, found, TROUBLED) == []
    assert judge(WHOLE, found, TROUBLED, ORACLE).outcome == "error 503 recovering"
    assert violations(WHOLE, found, CALM) != []
    assert violations(WHOLE, whole({"error": RETRY}, 503), TROUBLED) != []
    assert violations(WHOLE, whole({"error": RETRY}, 500), TROUBLED) != []
    assert violations(WHOLE, whole({"error": BROKEN}, 400), TROUBLED) != []


def test_a_request_that_could_go_on_must() -> None:
    found = whole({"error": RETRY}, 503, **{"retry-after": "5"})
    twice = Circumstances(troubled=True, breaks=2)

    assert violations(WHOLE, found, twice) != []
    assert violations(attrs.evolve(WHOLE, choices=2), found, twice) == []
    stalled = whole({"error": RETRY | {"reason": "stalled"}}, 503, **{"retry-after": "5"})
    assert violations(WHOLE, stalled, twice) == []


def test_a_deadline_excuses_its_own_end() -> None:
    ask = attrs.evolve(STREAM, deadline=0.3)
    found = streamed([*events_of(STREAM)[:3], {"error": TIMED_OUT}, "[DONE]"])

    assert violations(ask, found) == []
    assert violations(attrs.evolve(WHOLE, deadline=0.3), whole({"error": TIMED_OUT}, 504)) == []


def test_a_client_that_left_needs_the_beginning_of_the_truth() -> None:
    fault = ClientFault(kind=ClientFaultKind.VANISH, after_events=3)
    ask = attrs.evolve(STREAM, fault=fault)
    events = events_of(STREAM)

    assert violations(ask, streamed([*events[:3]], complete=False, left=True)) == []
    assert violations(ask, streamed([*events[:2], events[1]], complete=False, left=True)) != []


def test_only_a_client_that_closed_its_half_may_be_cut_off() -> None:
    fault = ClientFault(kind=ClientFaultKind.HALF_CLOSE, after_events=3)
    found = streamed([*events_of(STREAM)[:4]], complete=False)

    assert violations(attrs.evolve(STREAM, fault=fault), found) == []
    assert violations(STREAM, found) != []


def test_an_end_that_never_comes_needs_a_lost_message() -> None:
    lost = Circumstances(gave_up=True, tampered=frozenset({FaultKind.LOSE}))

    assert violations(WHOLE, Exchange(), lost) == []
    assert violations(WHOLE, Exchange(), attrs.evolve(TROUBLED, gave_up=True)) != []


def test_tampering_that_nobody_can_notice_excuses_tokens_and_no_form() -> None:
    around = Circumstances(tampered=frozenset({FaultKind.DUPLICATE}))
    events = doubled(events_of(STREAM))

    assert violations(STREAM, streamed(events), around) == []
    assert violations(STREAM, streamed(events[:-1]), around) != []


def test_garbled_messages_excuse_an_error_and_no_wrong_words() -> None:
    around = Circumstances(tampered=frozenset({FaultKind.GARBLE}), breaks=4)
    failed: list[Event | str] = [*events_of(STREAM)[:3], {"error": RETRY}, "[DONE]"]

    assert violations(STREAM, streamed(failed), around) == []
    assert violations(STREAM, streamed(failed), CALM) != []
    assert violations(STREAM, streamed(missing(events_of(STREAM))), around) != []


@pytest.mark.parametrize(
    "body", [b"{", b'data: {"choices": []}\n\ndata: [DONE]\n\ndata: x', b"nonsense\n\n"]
)
def test_what_is_no_answer_is_found(body: bytes) -> None:
    ask = WHOLE if body == b"{" else STREAM

    assert violations(ask, Exchange(status=200, body=body, complete=True)) != []
