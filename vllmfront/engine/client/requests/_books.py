"""The books: every request that is in flight, and how each leaves them.

All of it is synchronous, so no other task ever sees half a change.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import trio

from vllmfront.engine._output import EngineOutput, FinishReason
from vllmfront.engine.client.membership import EngineRank, Membership
from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._deadlines import Deadlines
from vllmfront.engine.client.requests._stream import CHOICES_A_TURN, RequestStream
from vllmfront.engine.client.requests._waiting_room import WaitingRoom
from vllmfront.engine.metrics import EngineMetrics, TerminalCause
from vllmfront.engine.transport import PeerGone
from vllmfront.engine.wire import encode_abort
from vllmfront.errors import EngineRequestFailed, RequestTimedOut, VllmFrontError

_LOGGER = logging.getLogger(__name__)


class Books:
    """Requests in flight: on an engine, by internal id, or in the waiting room."""

    def __init__(self, membership: Membership, metrics: EngineMetrics, room: WaitingRoom) -> None:
        self.children: dict[str, Child] = {}
        """Those that have an engine: what the reader looks outputs up in."""

        self.room = room
        self.deadlines = Deadlines()
        self.metrics = metrics
        self.on_stranger: Callable[[str], None] | None = None
        """Called with the id of each output for a request that is not in flight here."""

        self._membership = membership
        self._streams: set[RequestStream] = set()

    @property
    def num_requests(self) -> int:
        """Streams that have live children; a request with ``n`` choices counts once."""
        return len(self._streams)

    def enter(self, child: Child) -> None:
        """Note that *child* begins; where it goes is decided next."""
        child.live = True
        assert child.stream is not None
        self._streams.add(child.stream)
        child.stream.child_began()
        if child.request.lora is not None:
            self._membership.adapters.begin(child.request.lora)
        if child.request.deadline is not None:
            self.deadlines.add(child, child.request.deadline)

    def note_unknown(self, internal_id: str) -> None:
        """Take note of an output for a request that has ended here, or was never known."""
        self.metrics.count_unknown_output()
        if self.on_stranger is not None:
            self.on_stranger(internal_id)

    def park(self, child: Child) -> None:
        """Let *child*, which has no engine, wait for one."""
        assert child.stream is not None
        child.parked = True
        child.stream.num_parked += 1
        self.room.enter(child, trio.current_time())

    def unpark(self, child: Child) -> None:
        """Take *child* out of the waiting room."""
        assert child.stream is not None
        child.parked = False
        child.stream.num_parked -= 1
        self.room.leave(child)

    def withdraw(self, child: Child) -> None:
        """Take *child* from its engine, which is lost, and let it wait for another."""
        self._leave_rank(child)
        self.park(child)

    def settle(self, stream: RequestStream) -> None:
        """Close the account of *stream* if all of its children have ended."""
        if stream.finished:
            self._streams.discard(stream)
            self._record_choices(stream)

    def leave_in_turns(self, stream: RequestStream, cause: TerminalCause) -> Iterator[None]:
        """Do as ``leave``; yield where other tasks should get a turn.

        The engines are told first, and whatever they still say goes nowhere from then on.
        """
        self.abort([child for child in stream.children if child.live])
        live = [child for child in stream.children if child.live]
        for child in live:
            self._take_out(child)
        for number, child in enumerate(live, 1):
            self._account(child, cause, None)
            if number % CHOICES_A_TURN == 0:
                yield

    def leave(self, stream: RequestStream, cause: TerminalCause) -> None:
        """Abort the children of *stream* that live: one message for each engine."""
        self._abort_and_end([child for child in stream.children if child.live], cause)

    def _abort_and_end(self, children: Sequence[Child], cause: TerminalCause) -> None:
        self.abort(children)
        for child in children:
            # The abort may have found the engine gone, which has ended all of its children.
            if child.live:
                self.end(child, cause)

    def end(self, child: Child, cause: TerminalCause, error: VllmFrontError | None = None) -> None:
        """Take *child* out; the only way that a child ends."""
        self._take_out(child)
        self._account(child, cause, error)

    def fail(self, child: Child, cause: TerminalCause, error: VllmFrontError) -> None:
        """End *child* with *error*, which its sink is told first; nothing if it has ended."""
        if not child.live:
            return
        assert child.stream is not None
        if child.stream.begun:  # else whoever begins it is told
            try:
                child.sink.on_error(error)
            except Exception:
                _LOGGER.exception("A sink failed at the end of request %s", child.internal_id)
                self.metrics.count_sink_failure()
        self.end(child, cause, error)

    def sink_failed(self, child: Child, problem: Exception) -> None:
        """End *child*, whose sink raised *problem*; all others go on."""
        _LOGGER.error(
            "The output pipeline of request %s failed", child.internal_id, exc_info=problem
        )
        self.metrics.count_sink_failure()
        child.pending = None
        if not child.live:
            return
        self.abort([child])
        error = EngineRequestFailed("Processing the output of this request failed")
        self.fail(child, TerminalCause.INTERNAL_ERROR, error)

    def push_pending(self, child: Child) -> bool:
        """Push tokens that were kept back for merging.

        Returns:
            True when they completed the request, which is still live then.
        """
        tokens, child.pending = child.pending, None
        if not tokens:
            return False
        try:
            if child.kept is not None:
                child.kept.fromlist(tokens)
            return child.on_tokens(tokens)
        except Exception as problem:  # noqa: BLE001 (request edge; it is logged)
            self.sink_failed(child, problem)
            return False

    def flush(self, children: Iterable[Child]) -> list[Child]:
        """Push what was kept back; return those of *children* that live on."""
        children = list(children)
        for child in children:
            if child.live and self.push_pending(child):
                self._abort_and_end([child], TerminalCause.STOP)
        return [child for child in children if child.live]

    def abort(self, children: Iterable[Child]) -> None:
        """Tell the engines to drop *children*, one message each.

        Where that shows that an engine has gone, what runs there has ended on return.
        """
        by_rank: dict[EngineRank, list[str]] = {}
        for child in children:
            if child.parked or child.frames:  # it has not been sent, and never will be
                continue
            assert child.rank is not None
            by_rank.setdefault(child.rank, []).append(child.internal_id)
        for rank, ids in by_rank.items():
            if not rank.state.connected:
                continue
            try:
                self._membership.send(rank, encode_abort(ids))
            except PeerGone:
                _LOGGER.info("Engine %d left before it could be told of an abort", rank.rank)

    def abort_requests(self, public_ids: Collection[str] | None, cause: TerminalCause) -> int:
        """End requests as aborted, with what they have so far; None means all.

        Returns:
            How many requests that were; one with ``n`` choices counts once.
        """
        children = self.flush(
            child for child in self._all() if public_ids is None or child.public_id in public_ids
        )
        self.abort(children)
        for child in children:
            self.finish_aborted(child, cause)
        return len({child.public_id for child in children})

    def still_running(self, children: Iterable[tuple[str, Child]]) -> list[Child]:
        """Return those of *children* that run under the same internal id as then."""
        return [child for name, child in children if self.children.get(name) is child]

    def finish_aborted(self, child: Child, cause: TerminalCause) -> None:
        """End *child* as aborted, with what it has so far; nothing if it has ended."""
        if not child.live:
            return
        assert child.stream is not None
        try:
            child.stream.note_begin()
            child.on_output(EngineOutput(new_token_ids=[], finish_reason=FinishReason.ABORT))
        except Exception:
            _LOGGER.exception("A sink failed at the abort of request %s", child.internal_id)
            self.metrics.count_sink_failure()
        self.end(child, cause)

    def fail_all(self, error: VllmFrontError, cause: TerminalCause) -> None:
        """Abort everything, and end it with *error*."""
        children = self.flush(self._all())
        self.abort(children)
        for child in children:
            self.fail(child, cause, error.twin())

    def expire(self, children: Iterable[Child]) -> None:
        """Abort and end those of *children* that live: their deadline has passed."""
        children = self.flush(children)
        self.abort(children)
        for child in children:
            error = RequestTimedOut("The request was not finished by its deadline")
            self.fail(child, TerminalCause.TIMED_OUT, error)

    def _all(self) -> list[Child]:
        return [*self.children.values(), *self.room]

    def _record_choices(self, stream: RequestStream) -> None:
        if len(stream.children) == 1:
            [child] = stream.children
            if child.rank is not None:
                child.rank.metrics.record_choices(1, child.record.num_tokens)
            return
        by_request: dict[str, list[Child]] = {}
        for child in stream.children:
            by_request.setdefault(child.public_id, []).append(child)
        for children in by_request.values():
            rank = children[0].rank
            if rank is not None:
                longest = max(child.record.num_tokens for child in children)
                rank.metrics.record_choices(len(children), longest)

    def _take_out(self, child: Child) -> None:
        assert child.live
        child.live = False
        child.pending = child.kept = None
        if child.request.lora is not None:
            self._membership.adapters.end(child.request.lora)
        if child.deadline_number:
            self.deadlines.forget(child)
        if child.parked:
            self.unpark(child)
        else:
            self._leave_rank(child)

    def _leave_rank(self, child: Child) -> None:
        assert child.rank is not None
        del self.children[child.internal_id]
        child.rank.load.end()

    def _account(self, child: Child, cause: TerminalCause, error: VllmFrontError | None) -> None:
        if child.rank is not None:
            child.rank.metrics.record_end(child.record, cause, time.monotonic())
        self.metrics.count_cause(cause)
        stream, child.stream = child.stream, None
        assert stream is not None
        stream.child_ended(cause, error)
        self.settle(stream)
