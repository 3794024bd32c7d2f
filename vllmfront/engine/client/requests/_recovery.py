"""What becomes of requests whose engine is lost, or of which some output is.

Those that no engine has answered are sent again, those that were answered are continued where
that is safe, and the rest ends with an error that invites another try. All go through the waiting
room, behind whoever waits there already, and get a new internal id: what the old engine may still
say about them goes nowhere.
"""

import logging
from collections.abc import Iterable, Iterator

import trio

from vllmfront.engine._output import EngineOutput, FinishReason
from vllmfront.engine.client.membership import EngineRank, EngineState, Membership
from vllmfront.engine.client.requests._books import Books
from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._continuation import continued, may_send_again
from vllmfront.engine.client.requests._dispatch import Dispatch
from vllmfront.engine.client.requests._request_checks import RequestChecks
from vllmfront.engine.client.requests._stream import CHOICES_A_TURN
from vllmfront.engine.guard import adapt_request
from vllmfront.engine.metrics import TerminalCause
from vllmfront.engine.pause import HoldGate
from vllmfront.errors import (
    EngineRequestFailed,
    EngineUnavailable,
    RequestInterrupted,
    RequestRejected,
)

_LOGGER = logging.getLogger(__name__)

_IDS_LIKE_A_REQUEST = 256
"""Prompt ids that take as long to check and encode as all else about a request."""


class Recovery:
    """Takes up the requests of lost engines, and lets in who waits; ``serve`` is its task."""

    def __init__(
        self,
        books: Books,
        dispatch: Dispatch,
        membership: Membership,
        checks: RequestChecks,
        gate: HoldGate,
        *,
        retries: int,
    ) -> None:
        self._books = books
        self._room = books.room
        self._dispatch = dispatch
        self._membership = membership
        self._checks = checks
        self._gate = gate
        self._retries = retries
        self._wake = trio.Event()
        membership.on_loss(self._take_up)
        membership.on_hole(self._begin_anew)
        membership.on_change(self._notice)
        self._room.on_first(self._notice)
        gate.on_change(self._notice)

    async def serve(self) -> None:
        """Let in who can be served and send away whose time is up, until cancelled."""
        while True:
            with trio.move_on_at(self._room.next_expiry()):
                await self._wake.wait()
            self._wake = trio.Event()
            for _pause in self._admit():
                await trio.lowlevel.checkpoint()
            self._send_away(self._room.expired(trio.current_time()), TerminalCause.RECOVERY_TIMEOUT)

    def _notice(self) -> None:
        """Take note of a change among the engines."""
        if self._membership.state.value is EngineState.FAILED:
            self._send_away(self._room, TerminalCause.ENGINE_DIED)
        elif len(self._room):
            self._wake.set()

    def _take_up(self, rank: EngineRank) -> None:
        """Find a way for everything that runs on *rank*, which is lost."""
        running = [child for child in self._books.children.values() if child.rank is rank]
        if rank.cut_off:
            rank.orphans = [child.internal_id for child in running if not child.frames]
        resends = 0
        for child in self._books.flush(running):
            if self._gate.aborts:
                self._books.finish_aborted(child, TerminalCause.ENGINE_ABORTED)
                continue
            problem = self._problem(child)
            # It waits whatever the estimate: an engine may be sooner than the one before, and its
            # client has nothing to lose.
            if problem is None and self._dispatch.hopeless(child) is not None:
                problem = "no other engine could take it"
            if problem is None:
                self._leave_marks(child, rank)
                self._books.withdraw(child)
                resends += 1
            else:
                self._interrupt(child, f"{str(rank.death()).rstrip('.')}, and {problem}")
        if resends:
            _LOGGER.info("%d requests of engine %d will go on elsewhere", resends, rank.rank)
        self._notice()

    def _begin_anew(self, rank: EngineRank) -> None:
        """Find a way for everything that *rank*, which serves on, may have said something about.

        Each request goes on from what is known of it, under a new id; what the engine says under
        the old one comes after a hole.
        """
        running = [
            child
            for child in self._books.children.values()
            if child.rank is rank and not child.frames
        ]
        children = self._books.flush(running)
        self._books.abort(children)
        for child in children:
            if not child.live or child.parked:
                continue  # the abort has found the engine gone
            if self._gate.aborts:
                self._books.finish_aborted(child, TerminalCause.ENGINE_ABORTED)
                continue
            problem = self._problem(child)
            if problem is None:
                self._leave_marks(child, rank)
                self._books.withdraw(child)
            else:
                self._interrupt(
                    child, f"engine {rank.rank} sent something unreadable, and {problem}"
                )
        if children:
            _LOGGER.warning(
                "%d requests of engine %d go on from what was read of them: it sent a message that "
                "is unreadable",
                len(children),
                rank.rank,
            )
        self._notice()

    def _problem(self, child: Child) -> str | None:
        """Say why *child* cannot be sent again; None where it can."""
        if child.frames:
            return None  # it never was
        if child.resends >= self._retries:
            return f"the request was sent {child.resends + 1} times"
        if _answered(child):
            return None if child.kept is not None else "its answer cannot be continued elsewhere"
        return None if may_send_again(child.request) else "it cannot be sent twice"

    def _leave_marks(self, child: Child, rank: EngineRank) -> None:
        child.weight_version = rank.weight_version
        if _answered(child):
            child.answered = True
            rank.metrics.release(child.record)
        else:
            child.record.start_over()

    def _admit(self) -> Iterator[None]:
        """Post who can be served, in order; yield where other tasks should get a turn."""
        work = 0
        for pin in self._room.pins:
            while self._may_let_in():
                child = self._room.first(pin)
                rank = None if child is None else self._dispatch.find(child)
                if child is None or rank is None:
                    break
                self._let_in(child, rank)
                work += 1 + len(child.request.prompt_token_ids) // _IDS_LIKE_A_REQUEST
                if work >= CHOICES_A_TURN:
                    work = 0
                    yield

    def _may_let_in(self) -> bool:
        return self._membership.state.value is EngineState.READY and not self._gate.closed

    def _let_in(self, child: Child, rank: EngineRank) -> None:
        if not child.frames:
            if not self._renew(child, rank):
                return
        elif child.internal_id in self._books.children:  # where ids are promised to be unique
            self._dispatch.rename(child, child.request)
        self._books.unpark(child)
        self._dispatch.post(child, rank)
        assert child.stream is not None
        try:
            child.stream.note_begin()
        except Exception as problem:
            _LOGGER.exception("Request %s failed as it began", child.internal_id)
            self._books.abort([child])
            error = EngineRequestFailed("The request failed as it began")
            error.__cause__ = problem
            self._books.fail(child, TerminalCause.INTERNAL_ERROR, error)

    def _renew(self, child: Child, rank: EngineRank) -> bool:
        """Make what *child*, which was sent before, asks of *rank*; False if that ends it."""
        goes_on = _answered(child)
        lora = child.request.lora
        if goes_on:
            assert child.kept is not None
            if lora is not None and not self._membership.adapters.holds(lora):
                self._interrupt(child, f"its adapter {lora.name!r} is not what it was any more")
                return False
            if child.weight_version != rank.weight_version:
                self._interrupt(child, "the weights that began its answer are not loaded any more")
                return False
            request = continued(child.request, child.kept, self._checks.limits.max_model_len)
            if request is None:
                self._complete(child)
                return False
        else:
            request = adapt_request(child.request, self._membership.info.vllm_version)
        try:
            self._checks.check_again(request)
        except RequestRejected as error:
            self._interrupt(child, f"the engine in place of the lost one cannot take it: {error}")
            return False
        self._dispatch.rename(child, request)
        child.resends += 1
        self._books.metrics.count_resend(continues=goes_on)
        return True

    def _complete(self, child: Child) -> None:
        """End *child*, which has all the tokens that it asked for, as its engine would have."""
        child.record.settle()
        try:
            child.on_output(EngineOutput(new_token_ids=[], finish_reason=FinishReason.LENGTH))
        except Exception as problem:  # noqa: BLE001 (request edge; it is logged)
            self._books.sink_failed(child, problem)
        if child.live:
            self._books.end(child, TerminalCause.LENGTH)

    def _interrupt(self, child: Child, why: str) -> None:
        after = self._membership.seconds_until_ready()
        error = RequestInterrupted(f"The request was interrupted: {why}", retry_after=after or 1.0)
        self._books.fail(child, TerminalCause.ENGINE_DIED, error)

    def _send_away(self, children: Iterable[Child], cause: TerminalCause) -> None:
        """End those of *children* that still wait; no engine came for them."""
        for child in children:
            assert child.stream is not None
            error = self._membership.unavailable(child.request.data_parallel_rank)
            self._books.fail(child, cause, _interrupted(error) if child.stream.begun else error)


def _answered(child: Child) -> bool:
    return child.answered or child.record.num_tokens > 0


def _interrupted(error: EngineUnavailable) -> RequestInterrupted:
    return RequestInterrupted(
        f"The request was interrupted, and no engine could go on with it: {error}",
        retry_after=error.retry_after,
    )
