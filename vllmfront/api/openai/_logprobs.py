"""The ``logprobs`` members of both completion routes, as JSON."""

from collections.abc import Sequence
from typing import Protocol

import attrs
import msgspec

from vllmfront.engine import Logprobs
from vllmfront.text import CompletionLogprobs, LogprobDecoder

_encode = msgspec.json.encode


def first_rows(logprobs: Logprobs, count: int) -> Logprobs:
    """Return the first *count* positions."""
    return Logprobs(logprobs.token_ids[:count], logprobs.logprobs[:count], logprobs.ranks[:count])


class LogprobsWriter(Protocol):
    """Writes the ``logprobs`` member of events."""

    def write(self, parts: Sequence[Logprobs], shown_before: int) -> bytes:
        """Return the member of one event.

        Args:
            parts: The positions of the update, in order.
            shown_before: Characters that the choice's earlier events have shown.
        """


@attrs.frozen
class ChatLogprobsWriter:
    """``{"content": [...]}``."""

    decoder: LogprobDecoder
    top: int | None
    """Entries in ``top_logprobs``; None for all that the engine names."""

    def write(self, parts: Sequence[Logprobs], shown_before: int = 0) -> bytes:  # noqa: ARG002
        entries = [entry for part in parts for entry in self.decoder.chat(part, self.top)]
        return b'{"content":[%b]}' % b",".join(entries)


@attrs.frozen
class CompletionLogprobsWriter:
    """The four arrays of text completions."""

    decoder: LogprobDecoder

    def write(self, parts: Sequence[Logprobs], shown_before: int = 0) -> bytes:
        return _encode(self._arrays(parts, shown_before))

    def write_after_prompt(
        self,
        parts: Sequence[Logprobs],
        prompt_token_ids: Sequence[int],
        prompt_logprobs: Logprobs | None,
    ) -> bytes:
        """Return the member of a choice that its prompt leads.

        Args:
            parts: The generated positions that are shown.
            prompt_token_ids: The prompt.
            prompt_logprobs: From its second token on; None where it has but one.
        """
        echoed = self.decoder.echo(prompt_token_ids, prompt_logprobs)
        return _encode(echoed + self._arrays(parts, sum(map(len, echoed.tokens))))

    def _arrays(self, parts: Sequence[Logprobs], offset: int) -> CompletionLogprobs:
        arrays = CompletionLogprobs([], [], [], [])
        for part in parts:
            added = self.decoder.completion(part, offset)
            offset += sum(map(len, added.tokens))
            arrays += added
        return arrays


def prompt_logprobs_json(decoder: LogprobDecoder, logprobs: Logprobs | None) -> bytes:
    """Return the ``prompt_logprobs`` member; null where the engine gave none."""
    return b"null" if logprobs is None else _encode(decoder.prompt(logprobs))
