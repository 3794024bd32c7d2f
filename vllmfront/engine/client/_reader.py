"""The one task that reads an engine link's outputs and pushes them to where they belong.

What this file does per token is what serving a token costs, so it is plain on purpose: no task
is woken, nothing is awaited and nothing allocated that the sink does not need. Messages that are
waiting together are read together, and the tokens of one request merged into one push.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import trio
import zmq

from vllmfront.engine._output import FinishReason
from vllmfront.engine.client._books import Books
from vllmfront.engine.client._child import Child
from vllmfront.engine.client._connections import OutputConnections
from vllmfront.engine.client._failures import failure_of
from vllmfront.engine.client._membership import Membership
from vllmfront.engine.client._rank import EngineRank
from vllmfront.engine.client._utility import UtilityCalls
from vllmfront.engine.metrics import TerminalCause
from vllmfront.engine.transport import Message, MessageReceiver
from vllmfront.engine.wire import (
    Batch,
    EngineDead,
    decode_batch,
    decode_output,
    is_plain,
    row_id,
)
from vllmfront.errors import EngineDied, EngineRequestFailed, ProtocolError

logger = logging.getLogger(__name__)

MAX_PUSHES = 256
"""Pushes before other tasks get their turn; so many take one to three milliseconds."""

MAX_READ_SECONDS = 0.002
"""Time spent reading messages before what they hold is pushed. Reading an output takes half a
microsecond and merging saves a push of ten, so under load it pays to read on."""

Frames = list[bytes]


class OutputReader:
    """Reads outputs and pushes them; ``serve`` is its task."""

    def __init__(
        self,
        receiver: MessageReceiver,
        *,
        books: Books,
        calls: UtilityCalls,
        membership: Membership,
        connections: OutputConnections,
    ) -> None:
        self._receiver = receiver
        self._connections = connections
        self._books = books
        self._children = books.children
        self._calls = calls
        self._ranks = membership.ranks
        self._lone = next(iter(membership.ranks.values())) if len(membership.ranks) == 1 else None
        self._membership = membership
        self._pushing = False
        # Requests that their sinks completed since the last ABORT was sent.
        self._completed: dict[str, Child] = {}

    async def serve(self) -> None:
        """Read until cancelled. Nothing that an engine sends ends this task."""
        while True:
            await self._receiver.wait_message()
            for _pause in self._round():
                await trio.lowlevel.checkpoint()

    def read_waiting(self) -> None:
        """Read and push what has arrived, unless the task is at it just now."""
        if not self._pushing:
            for _pause in self._round():
                pass

    def _round(self) -> Iterator[None]:
        """Read what is waiting and push it; yield where other tasks should get a turn."""
        self._pushing = True
        batches = self._drain()
        if len(batches) == 1:
            yield from self._push_directly(*batches[0])
        elif batches:
            yield from self._push_merged(batches)
        self._abort_completed()
        self._pushing = False

    def _drain(self) -> list[tuple[EngineRank, Batch, Frames]]:
        """Read what is waiting; utility answers and deaths are dealt with on the way."""
        batches: list[tuple[EngineRank, Batch, Frames]] = []
        now = time.monotonic()
        deadline = now + MAX_READ_SECONDS
        while now < deadline:
            message = self._receiver.receive_nowait()
            if message is None:
                break
            item = self._read(message, now)
            if item is not None:
                batches.append(item)
            now = time.monotonic()
        return batches

    def _read(self, message: Message, now: float) -> tuple[EngineRank, Batch, Frames] | None:
        frames = [frame.bytes for frame in message]
        try:
            batch = decode_batch(frames)
        except ProtocolError as error:
            self._refuse_message(str(error))
            return None
        if isinstance(batch, EngineDead):
            self._take_death(message)
            return None
        engine = self._lone or self._ranks.get(batch.engine_index)
        if engine is None:
            self._refuse_message(f"it is from engine {batch.engine_index}, which is not expected")
            return None
        if self._lone is None:
            self._connections.claim(_descriptor(message), engine)
        engine.last_heard = now
        if batch.scheduler_stats is not None:
            self._take_stats(engine, batch.scheduler_stats)
        if batch.utility is not None:
            self._calls.answered(batch.utility)
        if batch.rows or batch.finished_requests:
            return engine, batch, frames
        return None

    def _refuse_message(self, why: str) -> None:
        self._books.metrics.count_malformed_message()
        logger.warning("Ignored a malformed output message: %s", why)

    def _take_stats(self, engine: EngineRank, stats: Any) -> None:
        engine.metrics.scheduler.record(stats)
        if self._lone is None:
            running, waiting = stats.get("num_running_reqs"), stats.get("num_waiting_reqs")
            if type(running) is int and type(waiting) is int:
                engine.load.report(running, waiting)

    def _take_death(self, message: Message) -> None:
        """Find out whose last words these are: the sentinel does not say."""
        engine = self._connections.owner(_descriptor(message))
        if engine is None:
            # Either it was replaced already, or it never sent any output. In that case the end
            # of its connection to the input socket, seconds from now, tells who it was.
            logger.warning("An engine that cannot be told yet reports its death")
            return
        error = EngineDied(f"engine {engine.rank} reported that its core has failed")
        self._membership.lose(engine, error)

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
        record_tokens = engine.metrics.record_tokens
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
                record_tokens(child.record, len(tokens))
                try:
                    complete = child.on_tokens(tokens)
                except Exception as problem:  # noqa: BLE001 (request edge; it is logged)
                    self._books.sink_failed(child, problem)
                else:
                    if complete:
                        self._complete(child)
            else:
                self._take_output(engine, batch, frames, row)

    def _push_merged(self, batches: list[tuple[EngineRank, Batch, Frames]]) -> Iterator[None]:
        """Push the rows of several messages; plain tokens of one request go together."""
        touched: list[Child] = []
        for engine, batch, frames in batches:
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
        record_tokens = engine.metrics.record_tokens
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
                record_tokens(child.record, len(tokens))
                if child.pending is None:
                    child.pending = tokens
                    touch(child)
                else:
                    child.pending += tokens
            else:
                self._take_output(engine, batch, frames, row)

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
        engine.metrics.record_output(child.record, output)
        reason = output.finish_reason
        if child.pending is not None and self._books.push_pending(child):
            # Complete already; if the engine is done as well, there is nothing to abort.
            self._complete(child, tell_engine=reason is None)
        if not child.live:
            return
        try:
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
        self._books.metrics.count_unknown_outputs(1)

    def _refuse_row(self, row: object, error: ProtocolError) -> None:
        """Count an unusable row; the request that it is for ends, all others go on."""
        self._books.metrics.count_malformed_output()
        internal_id = row_id(row)
        child = self._children.get(internal_id) if internal_id is not None else None
        logger.warning("Malformed output for request %s: %s", internal_id, error)
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


def _descriptor(message: Message) -> int:
    """Return the descriptor of the connection that *message* came over."""
    descriptor = message[0].get(zmq.SRCFD)
    assert isinstance(descriptor, int)
    return descriptor


def _finishes(row: object) -> bool:
    """Tell whether *row* says that its request has ended."""
    finish_reason = 5
    return type(row) is list and len(row) > finish_reason and row[finish_reason] is not None
