"""Log probabilities in the shapes of both completion routes, as JSON.

Engines send 32-bit floats, so they are written with the fewest digits that tell them apart. JSON
has no infinities and no NaN: clients get ``NEVER`` for them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import msgspec

from vllmfront.engine import Logprobs
from vllmfront.text import f32_shortest

NEVER = -9999.0
"""Stands for a probability of nought, as in the reference."""

NameToken = Callable[[int], str]
"""How a token is called: its text by itself, or ``token_id:N``."""

_encode = msgspec.json.encode


def token_id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


@attrs.frozen
class Candidate:
    token_id: int
    logprob: float
    rank: int


def shown(logprob: float) -> float:
    """Return a number for JSON."""
    return f32_shortest(logprob) if math.isfinite(logprob) else NEVER


def candidates(logprobs: Logprobs, row: int, most: int | None) -> list[Candidate]:
    """Return one position's tokens: the sampled one, then the others by rank, each once.

    Args:
        logprobs: What the engine said.
        row: The position.
        most: Columns besides the sampled one; None for all there are.
    """
    ids = logprobs.token_ids[row]
    values = logprobs.logprobs[row]
    found = {ids[0]: Candidate(ids[0], values[0], logprobs.ranks[row])}
    end = len(ids) if most is None else min(len(ids), most + 1)
    for rank in range(1, end):
        found.setdefault(ids[rank], Candidate(ids[rank], values[rank], rank))
    return list(found.values())


def first_rows(logprobs: Logprobs, count: int) -> Logprobs:
    """Return the first *count* positions."""
    return Logprobs(logprobs.token_ids[:count], logprobs.logprobs[:count], logprobs.ranks[:count])


class LogprobsWriter(Protocol):
    """Writes the ``logprobs`` member of one choice."""

    def update(self, parts: Sequence[Logprobs], shown_before: int) -> bytes:
        """Return the member of one event.

        Args:
            parts: The positions of the update, in order.
            shown_before: Characters that the choice's earlier events have shown.
        """

    def whole(self, parts: Sequence[Logprobs]) -> bytes:
        """Return the member of a whole answer."""


@attrs.frozen
class ChatLogprobs:
    """``{"content": [...]}``; ``top`` tokens a position, the sampled one before the others."""

    name: NameToken
    top: int | None
    """None shows all that the engine names."""

    def update(self, parts: Sequence[Logprobs], shown_before: int) -> bytes:  # noqa: ARG002
        return self.whole(parts)

    def whole(self, parts: Sequence[Logprobs]) -> bytes:
        return _encode({"content": [self._position(*place) for place in _positions(parts)]})

    def _position(self, logprobs: Logprobs, row: int) -> dict[str, Any]:
        found = candidates(logprobs, row, self.top)
        entry = self._entry(found[0])
        entry["top_logprobs"] = [self._entry(candidate) for candidate in found[: self.top]]
        return entry

    def _entry(self, candidate: Candidate) -> dict[str, Any]:
        name = self.name(candidate.token_id)
        return {
            "token": name,
            "logprob": shown(candidate.logprob),
            "bytes": list(name.encode()),
        }


@attrs.define
class CompletionArrays:
    """The four arrays of a text completion, as they grow."""

    offset: int
    """Characters before the next token."""

    tokens: list[str] = attrs.field(factory=list)
    token_logprobs: list[float | None] = attrs.field(factory=list)
    top_logprobs: list[dict[str, float] | None] = attrs.field(factory=list)
    text_offset: list[int] = attrs.field(factory=list)

    def add(self, token: str, logprob: float | None, top: dict[str, float] | None) -> None:
        self.tokens.append(token)
        self.token_logprobs.append(logprob)
        self.top_logprobs.append(top)
        self.text_offset.append(self.offset)
        self.offset += len(token)

    def json(self) -> bytes:
        return _encode(
            {
                "tokens": self.tokens,
                "token_logprobs": self.token_logprobs,
                "top_logprobs": self.top_logprobs,
                "text_offset": self.text_offset,
            }
        )


@attrs.frozen
class CompletionLogprobs:
    """The four arrays; ``top`` alternatives a position, besides the sampled one."""

    name: NameToken
    top: int | None
    """None shows all that the engine names."""

    def update(self, parts: Sequence[Logprobs], shown_before: int) -> bytes:
        arrays = CompletionArrays(shown_before)
        self._add(arrays, parts, self.top)
        return arrays.json()

    def whole(
        self,
        parts: Sequence[Logprobs],
        *,
        echoed: Sequence[int] = (),
        prompt_parts: Sequence[Logprobs] = (),
    ) -> bytes:
        """As in the protocol; *echoed* prompt ids lead, the first of them without a number."""
        arrays = CompletionArrays(0)
        if echoed:
            arrays.add(self.name(echoed[0]), None, None)
            self._add(arrays, prompt_parts, None)
        self._add(arrays, parts, self.top)
        return arrays.json()

    def _add(self, arrays: CompletionArrays, parts: Sequence[Logprobs], most: int | None) -> None:
        for logprobs, row in _positions(parts):
            found = candidates(logprobs, row, most)
            # Equal texts of different tokens collapse: the last one counts.
            top = {self.name(one.token_id): shown(one.logprob) for one in found}
            arrays.add(self.name(found[0].token_id), shown(found[0].logprob), top)


def prompt_logprobs_json(parts: Sequence[Logprobs], decode: NameToken) -> bytes:
    """Return the ``prompt_logprobs`` member: null for the first token, then a map a position."""
    positions: list[dict[str, Any] | None] = [None]
    for logprobs, row in _positions(parts):
        positions.append(
            {
                str(one.token_id): {
                    "logprob": shown(one.logprob),
                    "rank": one.rank,
                    "decoded_token": decode(one.token_id),
                }
                for one in candidates(logprobs, row, None)
            }
        )
    return _encode(positions)


def _positions(parts: Sequence[Logprobs]) -> Iterator[tuple[Logprobs, int]]:
    for logprobs in parts:
        for row in range(len(logprobs.ranks)):
            yield logprobs, row
