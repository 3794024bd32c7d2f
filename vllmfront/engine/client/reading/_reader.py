"""The one task that reads an engine link's outputs and pushes them to where they belong.

What this file does per token is what serving a token costs, so it is plain on purpose: no task
is woken, nothing is awaited and nothing allocated that the sink does not need. Messages that are
waiting together are read together, and the tokens of one request merged into one push.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import trio

from vllmfront.engine._output import FinishReason
from vllmfront.engine.client.membership import EngineRank, Membership
from vllmfront.engine.client.reading._inbox import Arrival, Frames, OutputInbox
from vllmfront.engine.client.requests import Books, Child, failure_of, without_prompt
from vllmfront.engine.metrics import TerminalCause
from vllmfront.engine.wire import (
    Batch,
    decode_output,
    is_plain,
    row_id,
)
from vllmfront.errors import EngineRequestFailed, ProtocolError

_LOGGER = logging.getLogger(__name__)

MAX_PUSHES = 256
"""Pushes before other tasks get their turn; so many take one to three milliseconds."""


class PushObserver(Protocol):
    """Somebody who wants to know when many sinks are called one after the other.

    The calls are as quick as those of sinks, and raise nothing.
    """

    def begin(self) -> None:
        """Sinks are about to be called."""

    def end(self) -> None:
        """They have been; other tasks may run now."""


class OutputReader:
    """Reads outputs and pushes them; ``serve`` is its task."""

    def __init__(self, inbox: OutputInbox, books: Books, membership: Membership) -> None:
        self._inbox = inbox
        self._books = books
        self._children = books.children
        self._membership = membership
        self._pushing = False
        self._observers: list[PushObserver] = []
        # Requests that their sinks completed since the last ABORT was sent.
        self._completed: dict[str, Child] = {}

    async def serve(self) -> None:
        """Read until cancelled. Nothing that an engine sends ends this task."""
        while True:
            await self._inbox.wait()
            for _pause in self._round():
                await trio.lowlevel.checkpoint()

    def read_waiting(self) -> None:
        """Read and push what has arrived, unless the task is at it just now."""
        if not self._pushing:
            for _pause in self._round():
                pass

    @contextmanager
    def observed_by(self, observer: PushObserver) -> Iterator[None]:
        """Tell *observer* of pushes for as long as the block runs."""
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    def _round(self) -> Iterator[None]:
        """Read what is waiting and push it; yield where other tasks should get a turn."""
        self._pushing = True
        pushes = self._push(self._inbox.drain())
        while True:
            observers = self._observers.copy()
            for observer in observers:
                observer.begin()
            try:
                paused = next(pushes, _PUSHED) is not _PUSHED
            finally:
                for observer in observers:
                    observer.end()
            if not paused:
                break
            yield
        self._pushing = False
        for engine, error in self._inbox.take_broken():
            if error is None:
                self._membership.engine_garbled(engine)
            else:
                self._membership.lose(engine, error)

    def _push(self, arrivals: list[Arrival]) -> Iterator[None]:
        if self._inbox.take_turned():
            yield from self._push_over_border(arrivals)
        elif len(arrivals) == 1:
            yield from self._push_directly(*arrivals[0])
        elif arrivals:
            yield from self._push_merged(arrivals)
        self._abort_completed()

    def _push_over_border(self, arrivals: list[Arrival]) -> Iterator[None]:
        """Push several messages one by one, and tell whom it concerns which weights made each."""
        for engine, batch, frames in arrivals:
            version = batch.weight_version
            if version is not None:
                for child in list(self._children.values()):
                    on_weights = getattr(child.sink, "on_weights", None)
                    if child.rank is engine and on_weights is not None:
                        on_weights(version)
            yield from self._push_directly(engine, batch, frames)

    def _push_directly(self, engine: EngineRank, batch: Batch, frames: Frames) -> Iterator[None]:
        """Push the rows of a lone message, each by itself."""
        metrics = engine.metrics
        metrics.begin_batch(batch.timestamp, time.monotonic())
        rows = batch.rows
        if len(rows) <= MAX_PUSHES:
            self._push_rows(engine, batch, frames, rows)
        else:
            for start in range(0, len(rows), MAX_PUSHES):
                if start:
                    yield
                self._push_rows(engine, batch, frames, rows[start : start + MAX_PUSHES])
        metrics.end_batch()
        if batch.finished_requests:
            self._end_forgotten(batch.finished_requests)

    def _push_rows(
        self, engine: EngineRank, batch: Batch, frames: Frames, rows: Sequence[Any]
    ) -> None:
        find = self._children.get
        metrics = engine.metrics
        previous, now, steady = metrics.previous_time, batch.timestamp, 0
        for row in rows:
            if is_plain(row):
                try:
                    child = find(row[0])
                except TypeError:
                    self._refuse_row(row, ProtocolError("the request id is no text"))
                    continue
                if child is None:
                    self._miss(row)
                    continue
                tokens = row[1]
                record = child.record
                if record.last_token_at == previous and len(tokens) == 1:
                    record.last_token_at = now
                    record.num_tokens += 1
                    steady += 1
                else:
                    metrics.record_tokens(record, len(tokens))
                try:
                    kept = child.kept
                    if kept is not None:
                        kept.fromlist(tokens)
                    complete = child.on_tokens(tokens)
                except Exception as problem:  # noqa: BLE001 (request edge; it is logged)
                    self._books.sink_failed(child, problem)
                else:
                    if complete:
                        self._complete(child)
            else:
                self._take_output(engine, batch, frames, row)
        metrics.record_steady(steady)

    def _push_merged(self, arrivals: list[Arrival]) -> Iterator[None]:
        """Push the rows of several messages; plain tokens of one request go together."""
        touched: list[Child] = []
        for engine, batch, frames in arrivals:
            metrics = engine.metrics
            metrics.begin_batch(batch.timestamp, time.monotonic())
            self._collect_rows(engine, batch, frames, touched)
            metrics.end_batch()
            if batch.finished_requests:
                self._end_forgotten(batch.finished_requests)
        push = self._books.push_pending
        for count, child in enumerate(touched, 1):
            if child.pending is not None and push(child):
                self._complete(child)
            if count % MAX_PUSHES == 0:
                yield

    def _collect_rows(
        self, engine: EngineRank, batch: Batch, frames: Frames, touched: list[Child]
    ) -> None:
        find = self._children.get
        metrics = engine.metrics
        previous, now, steady = metrics.previous_time, batch.timestamp, 0
        touch = touched.append
        for row in batch.rows:
            if is_plain(row):
                try:
                    child = find(row[0])
                except TypeError:
                    self._refuse_row(row, ProtocolError("the request id is no text"))
                    continue
                if child is None:
                    self._miss(row)
                    continue
                tokens = row[1]
                record = child.record
                if record.last_token_at == previous and len(tokens) == 1:
                    record.last_token_at = now
                    record.num_tokens += 1
                    steady += 1
                else:
                    metrics.record_tokens(record, len(tokens))
                if child.pending is None:
                    child.pending = tokens
                    touch(child)
                else:
                    child.pending += tokens
            else:
                self._take_output(engine, batch, frames, row)
        metrics.record_steady(steady)

    def _take_output(self, engine: EngineRank, batch: Batch, frames: Frames, row: object) -> None:
        """Push a row that carries more than tokens, after the tokens before it."""
        internal_id = row_id(row)
        child = self._children.get(internal_id) if internal_id is not None else None
        if child is None:
            self._miss(row)
            return
        try:
            output = decode_output(row, frames, batch.weight_version)
        except ProtocolError as problem:
            self._refuse_row(row, problem)
            return
        if child.resends and child.answered:
            output = without_prompt(output)
        engine.metrics.record_output(child.record, output)
        reason = output.finish_reason
        if child.pending is not None and self._books.push_pending(child):
            # Complete already; if the engine is done as well, there is nothing to abort.
            self._complete(child, tell_engine=reason is None)
        if not child.live:
            return
        child.answered = True
        try:
            if child.kept is not None and reason is None:
                child.kept.fromlist(output.new_token_ids)
            complete = child.on_output(output)
        except Exception as problem:  # noqa: BLE001 (request edge; it is logged)
            self._books.sink_failed(child, problem)
            return
        if reason is not None:
            if child.live:
                failed = reason is FinishReason.ERROR
                error = failure_of(output, child) if failed else None
                self._books.end(child, TerminalCause.of_finish(reason), error)
        elif complete:
            self._complete(child)

    def _complete(self, child: Child, *, tell_engine: bool = True) -> None:
        """End a request whose sink wants no more; the engine is told at the end of the round."""
        if not child.live:
            return
        if tell_engine:
            self._completed[child.internal_id] = child
        self._books.end(child, TerminalCause.STOP)

    def _abort_completed(self) -> None:
        if self._completed:
            completed, self._completed = self._completed, {}
            self._books.abort(completed.values())

    def _miss(self, row: object) -> None:
        """Take an output for a request that has ended here, or was never known."""
        internal_id = row_id(row)
        if internal_id is None:
            self._refuse_row(row, ProtocolError("an output has no request id"))
            return
        if internal_id in self._completed and _finishes(row):
            del self._completed[internal_id]
        self._books.note_unknown(internal_id)

    def _refuse_row(self, row: object, error: ProtocolError) -> None:
        """Count an unusable row; the request that it is for ends, all others go on."""
        self._books.metrics.count_malformed_output()
        internal_id = row_id(row)
        child = self._children.get(internal_id) if internal_id is not None else None
        _LOGGER.warning("Malformed output for request %s: %s", internal_id, error)
        if child is None or not self._books.flush([child]):
            return
        self._books.abort([child])
        failure = EngineRequestFailed(f"The engine sent an unusable output: {error}")
        self._books.fail(child, TerminalCause.PROTOCOL_ERROR, failure)

    def _end_forgotten(self, finished: Sequence[str]) -> None:
        """End requests that the engine says it has freed, although no output said how."""
        forgotten = [child for one in finished if (child := self._children.get(one)) is not None]
        for child in self._books.flush(forgotten):
            error = EngineRequestFailed("The engine dropped the request without a word")
            self._books.fail(child, TerminalCause.ENGINE_ERROR, error)


_PUSHED = object()


def _finishes(row: object) -> bool:
    """Tell whether *row* says that its request has ended."""
    finish_reason = 5
    return type(row) is list and len(row) > finish_reason and row[finish_reason] is not None
