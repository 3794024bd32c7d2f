"""The books: every request that is in flight, and the only ways in and out.

All of it is synchronous, so no other task ever sees half a change.
"""

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

from vllmfront.engine._output import EngineOutput, FinishReason
from vllmfront.engine.client._child import Child
from vllmfront.engine.client._ids import IdSource
from vllmfront.engine.client._membership import Membership
from vllmfront.engine.client._rank import EngineRank
from vllmfront.engine.client._state import EngineState
from vllmfront.engine.client._stream import CHOICES_A_TURN, RequestStream
from vllmfront.engine.metrics import EngineMetrics, TerminalCause
from vllmfront.engine.routing import choose
from vllmfront.engine.transport import PeerGone
from vllmfront.engine.wire import encode_abort, encode_add
from vllmfront.errors import (
    EngineRequestFailed,
    EngineUnavailable,
    Reason,
    RequestRejected,
    VllmFrontError,
)

logger = logging.getLogger(__name__)

MAX_POSTED = 16
"""Requests that wait for each other: more would delay the first, and save little."""

_REASONS = {EngineState.LOADING: Reason.LOADING, EngineState.DEAD: Reason.FAILED}


class Books:
    """Requests in flight, by internal id; adds and removes them, and tells the engines."""

    def __init__(
        self,
        membership: Membership,
        metrics: EngineMetrics,
        ids: IdSource,
        *,
        client_index: int = 0,
    ) -> None:
        self.children: dict[str, Child] = {}
        """What the reader looks outputs up in."""

        self.metrics = metrics
        self._membership = membership
        self._ids = ids
        self._client_index = client_index
        self._streams: set[RequestStream] = set()
        self._posted: list[Child] = []
        membership.on_loss(self.fail_rank)

    @property
    def num_requests(self) -> int:
        """Streams that have live children; a request with ``n`` choices counts once."""
        return len(self._streams)

    def prepare(self, child: Child, taken: set[str]) -> None:
        """Name *child* and encode it; *taken* are the names of others that are not sent yet.

        Raises:
            RequestRejected: Its id is taken.
        """
        request = child.request
        internal_id = self._ids.internal(request.request_id)
        if internal_id in self.children or internal_id in taken:
            raise _id_taken(request.request_id)
        taken.add(internal_id)
        child.internal_id = internal_id
        child.frames = encode_add(
            request,
            internal_id=internal_id,
            client_index=self._client_index,
            sampling=child.encoded_sampling,
        )

    def begin(self, stream: RequestStream, children: Sequence[Child]) -> None:
        """Post some of the prepared children of *stream*; where one cannot be, all end.

        They are sent by ``send_posted``, together with what others post meanwhile.

        Raises:
            RequestRejected: A request pins an unknown rank, or its id is taken.
            EngineUnavailable: Engines are loading.
            EngineDied: No engine is left to send to.
        """
        try:
            for child in children:
                self._post(child)
        except VllmFrontError:
            if stream.cause is None and stream.num_live == 0:
                self.metrics.count_cause(TerminalCause.REFUSED)
            self.leave(stream, TerminalCause.ENGINE_DIED)
            raise

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
        try:
            child.sink.on_error(error)
        except Exception:
            logger.exception("A sink failed at the end of request %s", child.internal_id)
            self.metrics.count_sink_failure()
        self.end(child, cause, error)

    def sink_failed(self, child: Child, problem: Exception) -> None:
        """End *child*, whose sink raised *problem*; all others go on."""
        logger.error(
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
            assert child.rank is not None
            if not child.frames:  # else it has not been sent, and never will be
                by_rank.setdefault(child.rank, []).append(child.internal_id)
        for rank, ids in by_rank.items():
            if rank.state is not EngineState.READY:
                continue
            try:
                self._membership.send(rank, encode_abort(ids))
            except PeerGone:
                logger.info("Engine %d left before it could be told of an abort", rank.rank)

    def abort_requests(self, public_ids: Collection[str] | None, cause: TerminalCause) -> int:
        """End requests as aborted, with what they have so far; None means all.

        Returns:
            How many requests that were; one with ``n`` choices counts once.
        """
        children = self.flush(
            child
            for child in self.children.values()
            if public_ids is None or child.public_id in public_ids
        )
        self.abort(children)
        for child in children:
            if not child.live:
                continue
            try:
                child.on_output(EngineOutput(new_token_ids=[], finish_reason=FinishReason.ABORT))
            except Exception:
                logger.exception("A sink failed at the abort of request %s", child.internal_id)
                self.metrics.count_sink_failure()
            self.end(child, cause)
        return len({child.public_id for child in children})

    def fail_all(self, error: VllmFrontError, cause: TerminalCause) -> None:
        """Abort everything, and end it with *error*."""
        children = self.flush(self.children.values())
        self.abort(children)
        for child in children:
            self.fail(child, cause, error.twin())

    def fail_rank(self, rank: EngineRank) -> None:
        """End everything that runs on *rank*, which is lost; what was not sent goes elsewhere."""
        for child in self.flush(child for child in self.children.values() if child.rank is rank):
            if not (child.frames and self._reroute(child)):
                self.fail(child, TerminalCause.ENGINE_DIED, rank.death())

    def _record_choices(self, stream: RequestStream) -> None:
        if len(stream.children) == 1:
            [child] = stream.children
            assert child.rank is not None
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
        assert child.rank is not None
        child.live = False
        child.pending = None
        del self.children[child.internal_id]
        child.rank.load.end()

    def _account(self, child: Child, cause: TerminalCause, error: VllmFrontError | None) -> None:
        assert child.rank is not None
        child.rank.metrics.record_end(child.record, cause, time.monotonic())
        self.metrics.count_cause(cause)
        stream, child.stream = child.stream, None
        assert stream is not None
        stream.child_ended(cause, error)
        self.settle(stream)

    def _post(self, child: Child) -> None:
        if child.internal_id in self.children:
            raise _id_taken(child.request.request_id)
        child.rank = self._choose(child)
        child.live = True
        self.children[child.internal_id] = child
        assert child.stream is not None
        self._streams.add(child.stream)
        child.stream.child_began()
        child.rank.load.send()
        self._posted.append(child)
        if len(self._posted) >= MAX_POSTED:
            self.send_posted()

    def send_posted(self) -> None:
        """Send what was posted and is still wanted, in order."""
        posted, self._posted = self._posted, []
        for child in posted:
            self._send(child)

    def _send(self, child: Child) -> None:
        while child.live:
            assert child.rank is not None
            try:
                self._membership.send(child.rank, child.frames)
            except PeerGone:
                # The loss was noted, and has led the child to another engine, or to its end.
                continue
            child.frames = []
            return

    def _reroute(self, child: Child) -> bool:
        """Choose another engine for a child that was not sent; False if there is none."""
        assert child.rank is not None
        try:
            other = self._choose(child)
        except VllmFrontError:
            return False
        child.rank.load.end()
        child.rank = other
        other.load.send()
        return True

    def _choose(self, child: Child) -> EngineRank:
        if self._membership.state.value is not EngineState.READY:
            raise self._membership.unavailable()
        ranks = self._membership.ranks
        pinned = child.request.data_parallel_rank
        if pinned is not None:
            rank = ranks.get(pinned)
            if rank is None:
                raise RequestRejected(
                    f"data_parallel_rank {pinned} is out of range [{min(ranks)}, {max(ranks) + 1})",
                    param="data_parallel_rank",
                )
            if rank.state is not EngineState.READY:
                raise EngineUnavailable(
                    f"engine {pinned} is {rank.state.value}", reason=_REASONS[rank.state]
                )
            return rank
        ready = self._membership.ready()
        if not ready:  # the last one is just being lost
            raise self._membership.unavailable()
        if len(ready) == 1:
            return ready[0]
        return ranks[choose({rank.rank: rank.load for rank in ready})]


def _id_taken(request_id: str) -> RequestRejected:
    return RequestRejected(f"Request id {request_id} is already in use", param="request_id")
