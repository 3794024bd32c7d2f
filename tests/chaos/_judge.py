"""Whether a request ended as the faults of its time allow, and with the right tokens."""

from collections.abc import Iterator

import attrs

from tests.chaos._asks import Ask
from tests.chaos._oracle import Oracle, Truth
from tests.chaos._reading import Choice, Reading, read
from vllmfront.testing import ClientFaultKind, Exchange, FaultKind

UNAVAILABLE = 503
TIMED_OUT = 504

RETRYABLE = frozenset({UNAVAILABLE})
"""What requests may get whose engine is gone."""

STALLED = "stalled"
"""The reason of a refusal while the only engine says nothing: nobody knows whether it will."""

RETRIES = 2
"""How often a frontend takes a request up again by default, if it has a single choice."""

ANSWERED = "answered"
"""The outcome of a request that ended well."""

TIMED_OUT_OUTCOME = "error 504"
REFUSED_OUTCOME = "error 503"

UNKNOWN = "unanswered"
UNKNOWN_OUTCOMES = frozenset({UNKNOWN, "left", "cut"})
"""Where the client did not see how the request ended."""

UNDETECTABLE = frozenset({FaultKind.DROP, FaultKind.DUPLICATE, FaultKind.REORDER})
"""What a frontend cannot tell from honest words: messages are not numbered."""

SILENCING = frozenset({FaultKind.LOSE, FaultKind.DROP, FaultKind.REORDER})
"""What may take a request's end away, so that it waits until its client has lost patience."""


@attrs.frozen(kw_only=True)
class Circumstances:
    """What happened around one request."""

    troubled: bool = False
    """An engine was dead, hung or starting at some time of the request."""

    tampered: frozenset[FaultKind] = frozenset()
    """What was done to messages about this very request."""

    breaks: int = 0
    """How often an engine may have been lost under it, or something that one said about it."""

    gave_up: bool = False
    """The client lost patience in the end."""


@attrs.frozen
class Verdict:
    """How a request ended, in a word, and what is wrong about it."""

    outcome: str
    violations: list[str]


def judge(ask: Ask, found: Exchange, around: Circumstances, oracle: Oracle) -> Verdict:
    """Judge one request."""
    reading = read(ask, found)
    outcome = _outcome(found, reading, around)
    violations = [
        *reading.faults,
        *_end_violations(ask, found, reading, around),
        *_content_violations(ask, found, reading, around, oracle),
    ]
    return Verdict(outcome, violations)


def _outcome(found: Exchange, reading: Reading, around: Circumstances) -> str:
    if around.gave_up:
        return UNKNOWN
    if found.left:
        return "left"
    if not found.complete:
        return "cut"
    if reading.error is not None:
        return f"error {reading.error.get('code')} {reading.error.get('reason', '')}".rstrip()
    return ANSWERED


def _end_violations(
    ask: Ask, found: Exchange, reading: Reading, around: Circumstances
) -> Iterator[str]:
    if around.gave_up:
        if not around.tampered & SILENCING:
            yield "no end came, and nothing was done to the request"
        return
    if found.left:
        return
    half_closed = ask.fault is not None and ask.fault.kind is ClientFaultKind.HALF_CLOSE
    if not found.complete:
        if not half_closed:
            yield "the connection broke"
        return
    if ask.streamed and found.status == 200 and not reading.done:
        yield "the stream ended without [DONE]"
    if reading.error is not None:
        yield from _error_violations(ask, found, reading.error, around)
    elif found.status != 200:
        yield f"status {found.status} without an error"


def _error_violations(
    ask: Ask, found: Exchange, error: dict[str, object], around: Circumstances
) -> Iterator[str]:
    code = error.get("code")
    if not error.get("message") or not error.get("type"):
        yield f"an error without message or type: {error}"
    if found.status not in (200, code):
        yield f"code {code} with status {found.status}"
    if code == TIMED_OUT:
        if ask.deadline is None:
            yield "timed out without a deadline"
        return
    if not around.troubled and not around.breaks:
        yield f"an error without a reason for one: {error}"
    elif ask.choices == 1 and around.breaks <= RETRIES and error.get("reason") != STALLED:
        yield f"an error after {around.breaks} interruptions: {error}"
    elif code not in RETRYABLE:
        yield f"an error that does not say that it is worth another try: {error}"
    elif found.status == UNAVAILABLE and "retry-after" not in found.headers:
        yield "a refusal without Retry-After"


def _content_violations(
    ask: Ask, found: Exchange, reading: Reading, around: Circumstances, oracle: Oracle
) -> Iterator[str]:
    prompt = reading.prompt if ask.prompt is None else ask.prompt
    if around.tampered & UNDETECTABLE or not reading.choices:
        return
    if prompt is None:
        yield "the prompt's ids are missing"
        return
    if reading.prompt is not None and list(prompt) != reading.prompt:
        yield "the prompt's ids are wrong"
    ended = found.complete and reading.error is None
    if ended and set(reading.choices) != set(range(ask.choices)):
        yield f"choices {sorted(reading.choices)} of {ask.choices}"
    truth = oracle.truth(ask, prompt)
    for index, choice in sorted(reading.choices.items()):
        for complaint in _choice_violations(ask, choice, truth, ended=ended):
            yield f"choice {index}: {complaint}"
    counted = reading.completion_tokens
    if ended and counted is not None and counted != len(truth.tokens) * ask.choices:
        yield f"{counted} tokens in the usage, {len(truth.tokens)} in each choice"


def _choice_violations(ask: Ask, choice: Choice, truth: Truth, *, ended: bool) -> Iterator[str]:
    """Compare with the truth; what has not ended well must be the beginning of it."""
    whole = ended or choice.finish_reason is not None
    if not _agrees(choice.text, truth.text, whole=whole):
        yield f"the text is {choice.text!r}, not {truth.text!r}"
    shows_all = ask.wants_ids and ask.stop is None
    if shows_all and not _agrees(choice.tokens, list(truth.tokens), whole=whole):
        yield f"the tokens are {choice.tokens}, not {truth.tokens}"
    if whole and choice.finish_reason != truth.finish_reason:
        yield f"it ends by {choice.finish_reason}, not {truth.finish_reason}"
    if whole and ask.logprobs and ask.stop is None and choice.logprobs != len(truth.tokens):
        yield f"{choice.logprobs} tokens are described, not {len(truth.tokens)}"


def _agrees(said: str | list[int], right: str | list[int], *, whole: bool) -> bool:
    return said == right if whole else right[: len(said)] == said
