"""A streamed answer: one event stream that the pipelines of one or more choices write to."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from vllmfront.api._errors import answer_to
from vllmfront.api.http import ResponseWriter
from vllmfront.api.openai._frames import (
    DONE,
    EVENT_STREAM_HEADERS,
    KEEP_ALIVE,
    error_event,
    usage_event,
)
from vllmfront.api.openai._held_heads import HeldHeads
from vllmfront.api.openai._keep_alive import KeepAlives
from vllmfront.api.openai._usage import Usage


class Drainable(Protocol):
    def drain(self) -> None:
        """Send what was held back while the client did not read."""


class Channel(Protocol):
    """Where events of one piece go."""

    def offer(self, head: bytes, text: bytes, tail: bytes) -> bool:
        """Send the three as one event, if the client keeps up and the stream has not ended.

        Returns:
            Whether it was sent.
        """


class StreamedAnswer:
    """The part of an event stream that its choices share, and its end.

    All methods are synchronous: engine links call them. The stream ends once, with usage if it
    was asked for and ``[DONE]``, or with an error and ``[DONE]``.
    """

    __slots__ = (
        "_head",
        "_heads",
        "_include_usage",
        "_keep_alives",
        "_open_choices",
        "_response",
        "_waiting",
        "closed",
        "last_write",
        "metrics",
        "usage",
    )

    def __init__(
        self,
        response: ResponseWriter,
        head: bytes,
        usage: Usage,
        *,
        choices: int,
        include_usage: bool = False,
        heads: HeldHeads | None = None,
        keep_alives: KeepAlives | None = None,
    ) -> None:
        """Make an answer that sends nothing yet.

        Args:
            response: Where it goes.
            head: What each event begins with.
            usage: Counts what the request uses; the prompt is in it.
            choices: How many choices there will be.
            include_usage: Whether the stream ends with the usage.
            heads: Sends the response head soon, where that is cheaper than at once.
            keep_alives: Sends comments while the stream is silent, from its head on.
        """
        self._response = response
        self._head = head
        self._open_choices = choices
        self._include_usage = include_usage
        self._heads = heads
        self._keep_alives = keep_alives
        self._waiting: deque[Drainable] = deque()
        self.usage = usage
        self.closed = False
        """Whether nothing more is sent; choices that go on then are to be aborted."""

        self.metrics: Callable[[], bytes] | None = None
        """Makes the ``metrics`` member that goes with the usage."""

        self.last_write: float | None = None
        """When an event went out, by Trio's clock; kept only where keep-alives are sent."""

    def start(self) -> None:
        """Send the response head, without waiting for anything that an engine may say."""
        if self._heads is None:
            self._response.start(200, EVENT_STREAM_HEADERS)
        else:
            self._heads.start(self._response, EVENT_STREAM_HEADERS)
        if self._keep_alives is not None:
            self._keep_alives.watch(self)

    @property
    def congested(self) -> bool:
        return self._response.congested

    def write(self, events: bytes) -> None:
        if self.last_write is not None:
            self.last_write = trio.current_time()
        self._response.write(events)

    @property
    def channel(self) -> Channel:
        """Where events go that need nothing of this answer."""
        return self._response if self._keep_alives is None else self

    def offer(self, head: bytes, text: bytes, tail: bytes) -> bool:
        """Be the channel where it matters when an event went out."""
        self.last_write = trio.current_time()
        return self._response.offer(head, text, tail)

    def hold(self, choice: Drainable) -> None:
        """Have *choice* drained when the client has read what was sent; once per call."""
        if not self._waiting:
            self._response.on_drained(self._drained)
        self._waiting.append(choice)

    def _drained(self) -> None:
        while self._waiting and not self._response.congested:
            self._waiting.popleft().drain()
        if not self._waiting:
            self._response.on_drained(None)

    def finish_choice(self, events: bytes) -> None:
        """Take a choice's last events; those of the last choice end the stream."""
        if self.closed:
            return
        self._open_choices -= 1
        if self._open_choices:
            self.write(events)
            return
        if self._include_usage:
            metrics = None if self.metrics is None else self.metrics()
            events += usage_event(self._head, self.usage.json(), metrics)
        self._close(events)

    def fail(self, error: Exception, events: bytes = b"") -> None:
        """End the stream with *error*, after *events* that came before it."""
        if self.closed:
            return
        self._close(events + error_event(answer_to(error).json()))

    def abandon(self) -> None:
        """Send nothing more: the request is over, whether its stream has ended or not."""
        self.closed = True
        self._waiting.clear()

    def keep_alive(self) -> None:
        """Send a comment, so that nobody on the way takes silence for death."""
        if not self.closed and not self._response.congested:
            self.write(KEEP_ALIVE)

    def _close(self, events: bytes) -> None:
        self.closed = True
        self._waiting.clear()
        self._response.on_drained(None)
        self._response.finish(events + DONE)
