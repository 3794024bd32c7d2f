"""Log probabilities as clients see them: ids become text, and numbers what JSON can hold.

Each token is decoded alone, so that a part of a character shows as a replacement character and a
skipped special token as nothing. Numbers are 32-bit floats in their shortest form; what is below
the floor, minus infinity and NaN included, is the floor.
"""

from collections.abc import Sequence

import attrs
import msgspec

from vllmfront.engine import Logprobs
from vllmfront.text._json import f32_shortest
from vllmfront.text._tokenizer import Tokenizer

LOGPROB_FLOOR = -9999.0
"""Written for minus infinity and for NaN, which JSON cannot hold."""

_encode = msgspec.json.encode


# msgspec writes the members of a slotted class in an order of its own, so these have a dict.
@attrs.frozen(slots=False)
class PromptLogprob:
    """One candidate at one position of the prompt, in the order of its JSON."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""One entry a prompt token, by candidate id; None for the first token, which has none."""


@attrs.frozen(slots=False)
class CompletionLogprobs:
    """The ``logprobs`` member of a completion's choice, in the order of its JSON."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def __add__(self, other: "CompletionLogprobs") -> "CompletionLogprobs":
        return CompletionLogprobs(
            self.tokens + other.tokens,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )


def finite_logprob(value: float) -> float:
    """Return *value* as a client sees it: shortest form, nothing below the floor, no NaN."""
    return f32_shortest(value) if value > LOGPROB_FLOOR else LOGPROB_FLOOR


class LogprobDecoder:
    """Decodes the logprobs of one way of asking for them; made once and shared by requests.

    Remembers the JSON of each token it has met, so it grows up to the vocabulary.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        as_token_ids: bool = False,
    ) -> None:
        """Make a decoder.

        Args:
            tokenizer: Decodes.
            skip_special_tokens: Whether special tokens show as nothing.
            as_token_ids: Whether tokens are named ``token_id:N`` instead of by their text.
        """
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._as_token_ids = as_token_ids
        self._fragments: dict[int, tuple[str, str]] = {}

    def text_of(self, token_id: int) -> str:
        """Return the text of a token that stands alone."""
        return self._tokenizer.decode((token_id,), self._skip)

    def name_of(self, token_id: int) -> str:
        """Return what a token is called in chat and completion logprobs."""
        return f"token_id:{token_id}" if self._as_token_ids else self.text_of(token_id)

    def chat(self, logprobs: Logprobs, top: int | None) -> list[bytes]:
        """Return the members of ``logprobs.content`` as JSON, one for each position.

        Args:
            logprobs: Of generated tokens.
            top: Entries in ``top_logprobs``: the sampled token first, then the most likely ones.
                None for all there are, which is how asked-for ids are answered.
        """
        return [
            self._chat_position(ids, values, top)
            for ids, values in zip(logprobs.token_ids, logprobs.logprobs, strict=True)
        ]

    def _chat_position(
        self, token_ids: Sequence[int], values: Sequence[float], top: int | None
    ) -> bytes:
        sampled = self._chat_entry(token_ids[0], values[0])
        entries: list[str] = []
        if top != 0:
            best = dict(zip(reversed(token_ids), reversed(values), strict=True))
            ordered = list(dict.fromkeys(token_ids))[:top]
            entries = [sampled + "}"]
            entries += [self._chat_entry(i, best[i]) + "}" for i in ordered[1:]]
        return f'{sampled},"top_logprobs":[{",".join(entries)}]}}'.encode()

    def _chat_entry(self, token_id: int, value: float) -> str:
        """Return an entry without its closing brace."""
        known = self._fragments.get(token_id)
        if known is None:
            name = self.name_of(token_id)
            known = (
                f'{{"token":{_encode(name).decode()},"logprob":',
                f',"bytes":{_encode(list(name.encode())).decode()}',
            )
            self._fragments[token_id] = known
        before, after = known
        return f"{before}{_encode(finite_logprob(value)).decode()}{after}"

    def completion(self, logprobs: Logprobs, offset: int = 0) -> CompletionLogprobs:
        """Return the arrays of a completion's ``logprobs``.

        Args:
            logprobs: Of generated tokens.
            offset: Characters that come before the first of them: of the prompt when it is echoed,
                and while streaming of the text sent so far.
        """
        tokens: list[str] = []
        chosen: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for ids, values in zip(logprobs.token_ids, logprobs.logprobs, strict=True):
            name = self.name_of(ids[0])
            value = finite_logprob(values[0])
            # Of candidates with equal text the last one stays, and the sampled one only if
            # there is no other.
            top = {
                self.name_of(i): finite_logprob(v) for i, v in zip(ids[1:], values[1:], strict=True)
            }
            top.setdefault(name, value)
            tokens.append(name)
            chosen.append(value)
            tops.append(top)
            offsets.append(offset)
            offset += len(name)
        return CompletionLogprobs(tokens, chosen, tops, offsets)

    def echo(
        self, prompt_token_ids: Sequence[int], logprobs: Logprobs | None
    ) -> CompletionLogprobs:
        """Return a prompt's own arrays, to stand before those of the answer.

        The first token has no logprob. *logprobs* is None for a prompt of one token.
        """
        name = self.name_of(prompt_token_ids[0])
        first = CompletionLogprobs([name], [None], [None], [0])
        return first if logprobs is None else first + self.completion(logprobs, len(name))

    def prompt(self, logprobs: Logprobs | None) -> PromptLogprobs:
        """Return a prompt's logprobs, by position and candidate id.

        The work grows with prompt and candidates: long ones belong in a worker thread.

        Args:
            logprobs: From the second token on; None for a prompt of one token.
        """
        positions: PromptLogprobs = [None]
        if logprobs is None:
            return positions
        for ids, values, rank in zip(
            logprobs.token_ids, logprobs.logprobs, logprobs.ranks, strict=True
        ):
            ranks = (rank, *range(1, len(ids)))
            positions.append(
                {
                    token_id: PromptLogprob(finite_logprob(value), rank, self.text_of(token_id))
                    for token_id, value, rank in zip(ids, values, ranks, strict=True)
                }
            )
        return positions
