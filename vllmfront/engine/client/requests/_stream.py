"""The scope of one request, or of several that belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import trio

from vllmfront.engine._output import EngineOutput
from vllmfront.engine.client.requests._buffer import OutputBuffer
from vllmfront.engine.client.requests._causes import cause_of
from vllmfront.engine.metrics import TerminalCause
from vllmfront.errors import VllmFrontError

if TYPE_CHECKING:
    from vllmfront.engine.client.requests._child import Child


CHOICES_A_TURN = 64
"""Choices that are prepared, sent or ended before other tasks get their turn: they take about a
millisecond."""


class Ledger(Protocol):
    """The part of the books that a stream uses to end."""

    def leave(self, stream: RequestStream, cause: TerminalCause) -> None:
        """Abort the children of *stream* that live."""

    def leave_in_turns(self, stream: RequestStream, cause: TerminalCause) -> Iterator[None]:
        """Do as ``leave``; yield where other tasks should get a turn."""

    def settle(self, stream: RequestStream) -> None:
        """Close the account of *stream* if all of its children have ended."""


class Sender(Protocol):
    """The part of the dispatch that a stream uses to begin."""

    def begin(self, stream: RequestStream, children: Sequence[Child]) -> None:
        """Begin some of the children of *stream*; where one cannot be, all end."""


class RequestStream:
    """What ``EngineClient.submit`` returns: enter it to send, leave it to be done.

    Entering sends. Leaving before all children have ended aborts those that
    live, in one message for each engine, without waiting. Outputs go to the sinks as they come;
    without sinks they collect here, to be iterated.
    """

    def __init__(self, books: Ledger, dispatch: Sender, buffer: OutputBuffer | None) -> None:
        self.children: list[Child] = []
        self.leave_cause: TerminalCause | None = None
        """Why the block is left early, where its owner knows better than its exception."""

        self.cause: TerminalCause | None = None
        """Why it ended; of several children, the first that did not end well, else the last."""

        self.why_cancelled: Callable[[], TerminalCause] | None = None
        """Asked for the cause where the task that waits to begin is cancelled."""

        self.on_begun: Callable[[], None] | None = None
        """Called when something has an engine to be sent to, before any output can come."""

        self.on_waiting: Callable[[], None] | None = None
        """To be called now and then while a stream that has begun waits for another engine."""

        self.on_ended: Callable[[], None] | None = None
        """Called when all of it has ended, after who waits for that was woken."""

        self.begun = False
        """Whether something has had an engine to be sent to."""

        self.num_parked = 0
        """Live children that wait for an engine; for the books alone to change."""

        self._books = books
        self._dispatch = dispatch
        self._buffer = buffer
        self._live = 0
        self._beginning = False
        self._error: VllmFrontError | None = None
        self._waiter: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        ids = ", ".join(child.request.request_id for child in self.children)
        return f"<RequestStream {ids}: {self._live} live, cause {self.cause}>"

    @property
    def error(self) -> VllmFrontError | None:
        """The first error that ended a child."""
        return self._error

    @property
    def finished(self) -> bool:
        """Whether no child lives any more, and none is still to be sent."""
        return self._live == 0 and not self._beginning

    @property
    def num_live(self) -> int:
        """Children that have begun and have not ended."""
        return self._live

    @property
    def num_generated_tokens(self) -> int:
        return sum(child.record.num_tokens for child in self.children)

    async def __aenter__(self) -> Self:
        """Send it; a checkpoint only where it has to wait, or has very many choices.

        It waits where an engine was lost and another may come in time. Cancelled, it ends.

        Raises:
            RequestRejected: An engine could not survive it, or it names an unknown rank.
            RequestTimedOut: Its deadline has passed; nothing was sent.
            EngineUnavailable: No engine takes it; nothing was sent.
            RequestInterrupted: Its engine was lost while very many choices were being sent.
        """
        if len(self.children) > CHOICES_A_TURN:
            await self._begin_in_turns()
        else:
            self.begin()
        if not self.begun:
            await self._wait_begun()
        return self

    def begin(self) -> None:
        """Send it without waiting for an engine; for who ends it by ``leave``, not by a block.

        Raises:
            VllmFrontError: As entering the block does.
        """
        self._dispatch.begin(self, self.children)
        if self.num_parked < self._live:
            self.note_begin()

    def leave(self, cause: TerminalCause) -> None:
        """Abort what lives; nothing where all has ended."""
        if self._live:
            self._books.leave(self, cause)

    async def _begin_in_turns(self) -> None:
        self._beginning = True
        try:
            for start in range(0, len(self.children), CHOICES_A_TURN):
                self._dispatch.begin(self, self.children[start : start + CHOICES_A_TURN])
                if self.num_parked < self._live:
                    self.note_begin()
                await trio.lowlevel.checkpoint()
        except BaseException as error:
            self._books.leave(self, cause_of(error))
            raise
        finally:
            self._beginning = False
            self._books.settle(self)

    async def _wait_begun(self) -> None:
        """Sleep until something has an engine, or all is over."""
        try:
            while not self.begun and self._live and self._error is None:
                self._waiter = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._forget_waiter)
        except BaseException as error:
            cause = self.leave_cause or cause_of(error)
            if self.why_cancelled is not None and isinstance(error, trio.Cancelled):
                cause = self.why_cancelled()
            self._books.leave(self, cause)
            raise
        if not self.begun and self._error is not None:
            self._books.leave(self, self.leave_cause or cause_of(self._error))
            raise self._error

    def note_begin(self) -> None:
        """Take note that something has an engine to be sent to; for dispatch and recovery alone."""
        if self.begun:
            return
        self.begun = True
        self._wake()
        if self.on_begun is not None:
            self.on_begun()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._live:
            return
        cause = self.leave_cause or cause_of(error)
        if self._live <= CHOICES_A_TURN:
            self._books.leave(self, cause)
            return
        for _pause in self._books.leave_in_turns(self, cause):
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def wait_finished(self) -> None:
        """Sleep until every child has ended.

        Raises:
            VllmFrontError: A child ended with it; others may still live and end with the block.
            trio.BusyResourceError: Another task is waiting already.
        """
        if self._live == 0 or self._error is not None:
            await trio.lowlevel.checkpoint()
        else:
            if self._waiter is not None:
                raise trio.BusyResourceError("another task is waiting for this stream")
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._forget_waiter)
        if self._error is not None:
            raise self._error

    def __aiter__(self) -> Self:
        """Iterate over the outputs of all children as they come; for streams without sinks."""
        return self

    async def __anext__(self) -> EngineOutput:
        item = await self.next_output()
        if item is None:
            raise StopAsyncIteration
        return item[1]

    async def next_output(self) -> tuple[int, EngineOutput] | None:
        """Return the next output and the index of its child; None after the last.

        For streams without sinks. Cancelled, it loses none.

        Raises:
            VllmFrontError: A child ended with it.
        """
        buffer = self._buffer
        if buffer is None:
            raise TypeError("this stream pushes into sinks; only one without can be iterated")
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            item = buffer.get_nowait()
            if item is not None:
                return item
            if self._error is not None:
                raise self._error
            if self._live == 0:
                return None
            await buffer.wait()

    def child_began(self) -> None:
        """Count a child that has begun; for the books alone."""
        self._live += 1

    def child_ended(self, cause: TerminalCause, error: VllmFrontError | None) -> None:
        """Count a child that ended, and wake whoever waits when it matters; for the books alone."""
        self._live -= 1
        if self.cause is None or self.cause.ended_well:
            self.cause = cause
        if error is not None and self._error is None:
            self._error = error
        if self._live == 0 or error is not None:
            self._wake()
            if self._buffer is not None:
                self._buffer.wake()
        if self._live == 0 and self.on_ended is not None:
            self.on_ended()

    def _wake(self) -> None:
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            trio.lowlevel.reschedule(waiter)

    def _forget_waiter(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED
