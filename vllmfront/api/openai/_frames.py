"""Server-sent events of both completion routes, as bytes.

What does not change within a request is encoded once. ``finish_reason`` and ``logprobs`` are null
where they say nothing, all other members are left out then: strict clients need the first two.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

_encode = msgspec.json.encode

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
EVENT_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    # Proxies that buffer would undo streaming.
    (b"x-accel-buffering", b"no"),
)
_NULLS = b',"logprobs":null,"finish_reason":null'
_TEXT_TAIL = b'"' + _NULLS + b"}]}\n\n"
_DELTA_TAIL = b'"}' + _NULLS + b"}]}\n\n"
_PLAIN_OPENING = b'{"role":"assistant","content":""}' + _NULLS + b"}]}\n\n"


class AnswerHead(msgspec.Struct, frozen=True):
    """What an answer, and each event of a stream, begins with."""

    id: str
    created: int
    model: str
    object: bytes

    def fields_json(self) -> bytes:
        """Return the first members of an object, which stays open."""
        return b'{"id":%b,"object":"%b","created":%d,"model":%b' % (
            _encode(self.id),
            self.object,
            self.created,
            _encode(self.model),
        )

    def event_json(self) -> bytes:
        """Return an event up to the list of choices, which stays open."""
        return b'data: %b,"choices":[' % self.fields_json()


class ChoiceFrames(Protocol):
    """The events of one choice."""

    opening: bytes
    """Goes out with the choice's first output; may be empty."""

    text_head: bytes
    text_tail: bytes
    """Around escaped text, the event of an update that carries nothing else."""

    skips_empty: bool
    """Whether an update that shows nothing makes no event."""

    def delta(
        self,
        text: str,
        *,
        logprobs: bytes | None = None,
        token_ids: Sequence[int] | None = None,
        usage: bytes | None = None,
    ) -> bytes:
        """Return the event of one update; None leaves a member out."""

    def final(
        self,
        finish_reason: str,
        stop_reason: int | str | None,
        usage: bytes | None = None,
        weight_versions: bytes | None = None,
    ) -> bytes:
        """Return the event that ends the choice."""


class ChatFrames:
    """``chat.completion.chunk`` events of one choice."""

    __slots__ = ("_base", "opening", "skips_empty", "text_head", "text_tail")

    def __init__(
        self,
        head: bytes,
        index: int,
        *,
        echo: str = "",
        prompt_token_ids: Sequence[int] | None = None,
        usage: bytes | None = None,
    ) -> None:
        self._base = b'%b{"index":%d,"delta":' % (head, index)
        self.text_head = self._base + b'{"content":"'
        self.text_tail = _DELTA_TAIL
        self.skips_empty = True
        if usage is None and prompt_token_ids is None and not echo:
            self.opening = self._base + _PLAIN_OPENING
            return
        usage_member = _member(b"usage", usage)
        ids = None if prompt_token_ids is None else _encode(prompt_token_ids)
        self.opening = b"".join(
            (
                self._base,
                b'{"role":"assistant","content":""}',
                _NULLS,
                b"}]",
                usage_member,
                _member(b"prompt_token_ids", ids),
                b"}\n\n",
            )
        )
        if echo:
            self.opening += self.delta(echo, usage=usage)

    def delta(
        self,
        text: str,
        *,
        logprobs: bytes | None = None,
        token_ids: Sequence[int] | None = None,
        usage: bytes | None = None,
    ) -> bytes:
        return b"".join(
            (
                self._base,
                b'{"content":%b}' % _encode(text) if text else b"{}",
                _logprobs_member(logprobs),
                b',"token_ids":%b' % _encode(token_ids) if token_ids else b"",
                b"}]",
                _member(b"usage", usage),
                b"}\n\n",
            )
        )

    def final(
        self,
        finish_reason: str,
        stop_reason: int | str | None,
        usage: bytes | None = None,
        weight_versions: bytes | None = None,
    ) -> bytes:
        return b"".join(
            (self._base, b"{}", _reasons(finish_reason, stop_reason),
             _member(b"weight_versions", weight_versions), b"}]",
             _member(b"usage", usage), b"}\n\n")
        )  # fmt: skip


class CompletionFrames:
    """``text_completion`` events of one choice."""

    __slots__ = ("_base", "_with_ids", "opening", "skips_empty", "text_head", "text_tail")

    def __init__(
        self,
        head: bytes,
        index: int,
        *,
        echo: str = "",
        prompt_token_ids: Sequence[int] | None = None,
        usage: bytes | None = None,
        prompt_logprobs: bytes | None = None,
    ) -> None:
        self._base = b'%b{"index":%d,"text":' % (head, index)
        self.text_head = self._base + b'"'
        self.text_tail = _TEXT_TAIL
        self.skips_empty = False
        self._with_ids = prompt_token_ids is not None
        self.opening = b""
        if echo or self._with_ids:
            rest = _logprobs_member(prompt_logprobs)
            if prompt_token_ids is not None:
                rest += b',"token_ids":[],"prompt_token_ids":' + _encode(prompt_token_ids)
            self.opening = self._event(_encode(echo), rest, usage)

    def delta(
        self,
        text: str,
        *,
        logprobs: bytes | None = None,
        token_ids: Sequence[int] | None = None,
        usage: bytes | None = None,
    ) -> bytes:
        rest = _logprobs_member(logprobs)
        if token_ids is not None:
            rest += b',"token_ids":' + _encode(token_ids)
        return self._event(_encode(text), rest, usage)

    def final(
        self,
        finish_reason: str,
        stop_reason: int | str | None,
        usage: bytes | None = None,
        weight_versions: bytes | None = None,
    ) -> bytes:
        ids = b',"token_ids":[]' if self._with_ids else b""
        rest = _reasons(finish_reason, stop_reason) + ids
        return self._event(b'""', rest + _member(b"weight_versions", weight_versions), usage)

    def _event(self, text: bytes, rest: bytes, usage: bytes | None) -> bytes:
        return b"".join((self._base, text, rest, b"}]", _member(b"usage", usage), b"}\n\n"))


def usage_event(head: bytes, usage: bytes, metrics: bytes | None) -> bytes:
    """Return the event without choices that tells the usage."""
    return b"%b],%b%b}\n\n" % (head, b'"usage":' + usage, _member(b"metrics", metrics))


def error_event(error: bytes) -> bytes:
    """Return the event that carries an error, given its JSON."""
    return b"data: %b\n\n" % error


def _member(name: bytes, value: bytes | None) -> bytes:
    return b"" if value is None else b',"%b":%b' % (name, value)


def _logprobs_member(logprobs: bytes | None) -> bytes:
    return _NULLS if logprobs is None else b',"logprobs":%b,"finish_reason":null' % logprobs


def _reasons(finish_reason: str, stop_reason: int | str | None) -> bytes:
    stop = None if stop_reason is None else _encode(stop_reason)
    return b',"logprobs":null,"finish_reason":%b%b' % (
        _encode(finish_reason),
        _member(b"stop_reason", stop),
    )
