"""Whether a rollout's answer is one that docs/rl.md allows, and whether anything leaked."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from tests.rl_soak._record import ADD, CALL, EXIT, PAUSES, READY, RESUME, Record
from tests.rl_soak._task import Window
from tests.rl_soak._truth import History, plausible_complaints, span_complaints
from vllmfront.testing import Exchange

UNAVAILABLE = 503
HELD = frozenset({"paused", "sleeping"})
DONE = "[DONE]"


@attrs.frozen(kw_only=True)
class Surroundings:
    """What happened while an answer was on its way."""

    modes: frozenset[str]
    """Of all pauses that there may have been."""

    troubled: bool
    """Whether an engine could not be relied upon."""

    versions: Sequence[str]
    """Of all weights that engines may have had."""


@attrs.define
class Attempt:
    """One answer, as its client reads it."""

    status: int | None
    complete: bool
    tokens: list[int] = attrs.field(factory=list)
    spans: list[dict[str, Any]] | None = None
    finish: str | None = None
    error: dict[str, Any] | None = None
    retry_after: float | None = None
    faults: list[str] = attrs.field(factory=list)

    @property
    def outcome(self) -> str:
        if self.error is not None:
            where = "after tokens" if self.tokens else ""
            return f"{self.error.get('code')} {self.error.get('reason')} {where}".rstrip()
        return self.finish or "broken"

    @property
    def may_go_on(self) -> bool:
        """Whether the rest may be asked for: else the rollout is lost."""
        return self.error is not None or self.finish is not None

    @classmethod
    def read(cls, found: Exchange, *, streamed: bool) -> "Attempt":
        after = found.headers.get("retry-after")
        attempt = cls(found.status, found.complete, retry_after=None if not after else float(after))
        if found.status == 200 and streamed:
            attempt._read_events(found.body)
        elif found.complete:
            attempt._take(json.loads(found.body))
        return attempt

    def _read_events(self, body: bytes) -> None:
        ended = False
        for event in body.decode().split("\n\n")[:-1]:
            if event.startswith(":"):
                continue
            data = event.removeprefix("data: ")
            if ended:
                self.faults.append(f"an event after the end: {data[:80]}")
            elif data == DONE:
                ended = True
            else:
                self._take(json.loads(data))
        if self.complete and not ended:
            self.faults.append("the stream ended without [DONE]")

    def _take(self, body: dict[str, Any]) -> None:
        if self.finish is not None or self.error is not None:
            self.faults.append(f"it goes on after its end: {json.dumps(body)[:80]}")
        if "error" in body:
            self.error = body["error"]
            return
        (choice,) = body["choices"]
        self.tokens += choice.get("token_ids") or ()
        self.finish = choice.get("finish_reason")
        self.spans = choice.get("weight_versions") or self.spans


def attempt_complaints(
    attempt: Attempt, wanted: int, history: History, around: Surroundings, *, hung: bool = False
) -> list[str]:
    """Say what is wrong with an answer that was to have *wanted* tokens after *history*."""
    found = list(attempt.faults)
    if hung:
        return [*found, "it hangs"]
    if not attempt.complete:
        return [*found, f"the connection broke, after {len(attempt.tokens)} tokens"]
    if attempt.error is not None:
        found += _error_complaints(attempt, attempt.error, around)
    else:
        found += _end_complaints(attempt, wanted, around)
    if attempt.spans is None:
        if attempt.tokens and attempt.error is None:
            found.append("nothing says what made its tokens")
        return found + plausible_complaints(history, attempt.tokens, around.versions)
    return found + span_complaints(history, attempt.tokens, attempt.spans)


def _end_complaints(attempt: Attempt, wanted: int, around: Surroundings) -> Iterator[str]:
    said = len(attempt.tokens)
    if attempt.status != 200:
        yield f"status {attempt.status} without an error"
    elif attempt.finish == "length":
        if said != wanted:
            yield f"{said} tokens of {wanted}"
    elif attempt.finish == "abort":
        if "abort" not in around.modes:
            yield "aborted, and no pause does that"
        if said > wanted:
            yield f"{said} tokens of {wanted}"
    else:
        yield f"it ends by {attempt.finish}"


def _error_complaints(
    attempt: Attempt, error: dict[str, Any], around: Surroundings
) -> Iterator[str]:
    code, reason = error.get("code"), error.get("reason")
    if code != UNAVAILABLE:
        yield f"an error that does not say that it is worth another try: {error}"
    elif attempt.status == UNAVAILABLE and attempt.retry_after is None:
        yield f"a refusal without Retry-After: {error}"
    elif reason in HELD:
        if not around.modes - {"keep"}:
            yield f"refused, and no pause does that: {error}"
        if attempt.tokens:
            yield f"refused after {len(attempt.tokens)} tokens: {error}"
    elif not around.troubled:
        yield f"an error without a reason for one: {error}"


@attrs.define
class LeakWatch:
    """Looks at what engines hear for requests that reach one while generation is paused."""

    _paused: dict[tuple[int, int], float] = attrs.field(factory=dict)
    """Since when, by rank and life."""

    _ready: dict[tuple[int, int], float] = attrs.field(factory=dict)
    adds: list[tuple[float, str]] = attrs.field(factory=list)
    requests: int = 0

    def hear(self, records: Iterable[Record]) -> Iterator[str]:
        """Take what engines have heard, in order of time; yield what should not have been."""
        for record in records:
            place = record.rank, record.life
            if record.event == READY:
                self._ready[place] = record.time
            elif record.event == EXIT:
                self._paused.pop(place, None)
            elif record.event == CALL and record.name in PAUSES:
                self._paused.setdefault(place, record.time)
            elif record.event == CALL and record.name == RESUME:
                self._paused.pop(place, None)
            elif record.event == ADD:
                self.requests += 1
                self.adds.append((record.time, record.name))
                yield from self._judge(record, place)

    def _judge(self, record: Record, place: tuple[int, int]) -> Iterator[str]:
        if place in self._paused:
            ago = record.time - self._paused[place]
            yield f"{record.name} reached engine {record.rank}, paused {ago:.3f} s before"
        ready = self._ready.get(place, record.time)
        for (rank, _), since in self._paused.items():
            if rank != record.rank and since < ready:
                yield (
                    f"{record.name} reached engine {record.rank}, which came back while engine "
                    f"{rank} was paused"
                )


def window_leaks(windows: Iterable[Window], adds: Sequence[tuple[float, str]]) -> Iterator[str]:
    """Yield what reached an engine between the answer to a pause and the order to go on."""
    for window in windows:
        for time, name in adds:
            if window.begin < time < window.end:
                yield f"{name} reached an engine {time - window.begin:.3f} s into a window"
