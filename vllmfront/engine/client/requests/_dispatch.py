"""The way in: which engine gets a request, what waits for one, and when what is sent."""

from collections.abc import Collection, Sequence

import trio

from vllmfront.engine._request import EngineRequest
from vllmfront.engine.client.membership import EngineRank, EngineState, Membership, RankState
from vllmfront.engine.client.requests._books import Books
from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._ids import IdSource
from vllmfront.engine.client.requests._stream import RequestStream
from vllmfront.engine.coordinator import Waves
from vllmfront.engine.metrics import TerminalCause
from vllmfront.engine.pause import HoldGate
from vllmfront.engine.routing import Routing
from vllmfront.engine.transport import PeerGone
from vllmfront.engine.wire import encode_add
from vllmfront.errors import (
    EngineUnavailable,
    ModelNotFound,
    Reason,
    RequestRejected,
    RequestTimedOut,
    VllmFrontError,
)

MAX_POSTED = 16
"""Requests that wait for each other: more would delay the first, and save little."""


class Dispatch:
    """Gives requests an engine, or a place in the waiting room."""

    def __init__(
        self,
        books: Books,
        membership: Membership,
        ids: IdSource,
        gate: HoldGate,
        *,
        waves: Waves,
        routing: Routing,
        client_index: int = 0,
    ) -> None:
        self._books = books
        self._membership = membership
        self._ids = ids
        self._gate = gate
        self._waves = waves
        self._client_index = client_index
        self._room = books.room
        self._posted: list[Child] = []
        self._routing = routing
        # With one engine there is nothing to choose, nor to know.
        self._several = len(membership.ranks) > 1
        membership.on_arrival(lambda engine: routing.forget(engine.rank))

    def prepare(self, child: Child, taken: Collection[str]) -> None:
        """Name *child* and encode it; *taken* are the names of others that are not sent yet.

        Raises:
            RequestRejected: Its id is taken.
        """
        request = child.request
        internal_id = self._ids.internal(request.request_id)
        if internal_id in self._books.children or internal_id in taken:
            raise _id_taken(request.request_id)
        self._encode(child, internal_id, request)

    def rename(self, child: Child, request: EngineRequest) -> None:
        """Give *child*, which was sent before, a new id, and encode *request* under it."""
        self._encode(child, self._ids.fresh(child.request.request_id), request)

    def begin(self, stream: RequestStream, children: Sequence[Child]) -> None:
        """Begin some of the prepared children of *stream*; where one cannot be, all end.

        They are sent by ``send_posted``, together with what others post meanwhile; those without
        an engine wait for one.

        Raises:
            RequestRejected: A request pins an unknown rank, or its id is taken.
            ModelNotFound: Its adapter was unloaded meanwhile.
            RequestTimedOut: Its deadline has passed.
            EngineUnavailable: No engine takes it, and none will in time.
        """
        try:
            for child in children:
                self._begin(child)
        except VllmFrontError as error:
            if stream.cause is None and stream.num_live == 0:
                late = isinstance(error, RequestTimedOut)
                self._books.metrics.count_cause(
                    TerminalCause.TIMED_OUT if late else TerminalCause.REFUSED
                )
            self._books.leave(stream, TerminalCause.ENGINE_DIED)
            raise

    def find(self, child: Child) -> EngineRank | None:
        """Return the engine that is best for *child* now; None where there is none."""
        membership = self._membership
        pinned = child.request.data_parallel_rank
        if pinned is not None:
            rank = membership.ranks[pinned]
            return rank if rank.state is RankState.READY else None
        ready = membership.ready
        if len(ready) == 1:
            return ready[0]
        if not ready:
            return None
        return self._routing.choose(ready, child.request)

    def refusal(self, child: Child) -> VllmFrontError | None:
        """Return why *child*, which has no engine yet, need not wait for one; None where it may."""
        hopeless = self.hopeless(child)
        if hopeless is not None:
            return hopeless
        membership, pin = self._membership, child.request.data_parallel_rank
        estimate = membership.seconds_until_ready(pin)
        if estimate is None or estimate <= self._room.patience or self._has_engine(pin):
            return None
        return membership.unavailable(pin)

    def hopeless(self, child: Child) -> VllmFrontError | None:
        """Return why no engine will come for *child*; None where one may."""
        membership, pin = self._membership, child.request.data_parallel_rank
        state = membership.state.value
        if state is EngineState.READY and self._has_engine(pin):
            return None  # others may stand before it, and are let in with it
        if state in _NOT_AWAITED or self._room.patience == 0:
            return membership.unavailable(pin)
        if membership.ending:
            return EngineUnavailable("The engine is being stopped.", reason=Reason.DRAINING)
        return None

    def _has_engine(self, pin: int | None) -> bool:
        """Tell whether one serves that may take a request which is pinned to rank *pin*, or not."""
        if pin is None:
            return bool(self._membership.ready)
        return self._membership.ranks[pin].state is RankState.READY

    def post(self, child: Child, rank: EngineRank) -> None:
        """Let *child* be sent to *rank* at the end of this turn."""
        child.rank = rank
        self._books.children[child.internal_id] = child
        rank.load.send()
        if self._several:
            self._routing.sent(rank, child.request)
        self._posted.append(child)
        if len(self._posted) >= MAX_POSTED:
            self.send_posted()

    def send_posted(self) -> None:
        """Send what was posted and is still wanted, in order."""
        posted, self._posted = self._posted, []
        if not posted:
            return
        last: EngineRank | None = None
        try:
            for child in posted:
                if child.live and not child.parked and child.frames:
                    self._send(child)
                    last = child.rank
        finally:
            self._membership.sent()
            if last is not None:
                self._waves.requested(last.rank)

    def _send(self, child: Child) -> None:
        assert child.rank is not None
        try:
            self._membership.send_among_others(child.rank, child.frames)
        except PeerGone:
            return  # the loss was noted, and has led the child to the waiting room, or to its end
        child.frames = []

    def _begin(self, child: Child) -> None:
        request = child.request
        pin = request.data_parallel_rank
        if pin is not None and pin not in self._membership.ranks:
            raise _no_such_rank(pin, self._membership.ranks)
        if child.internal_id in self._books.children:
            raise _id_taken(request.request_id)
        if request.lora is not None and request.lora.int_id not in self._membership.adapters.ids:
            raise ModelNotFound(f"The model `{request.lora.name}` does not exist.", param="model")
        if request.deadline is not None and request.deadline <= trio.current_time():
            raise RequestTimedOut("The request's deadline had passed before it could be sent")
        rank = None
        if self._gate.closed:
            # Who may queue here waits for somebody's order, however long an engine takes.
            refusal = self._gate.refusal() or self.hopeless(child)
            if refusal is not None:
                raise refusal
        else:
            # The client may not be READY although a rank is: the others are still loading.
            if self._membership.state.value is EngineState.READY and not self._room.first(pin):
                rank = self.find(child)
            if rank is None and (refusal := self.refusal(child)) is not None:
                raise refusal
        self._books.enter(child)
        if rank is None:
            self._books.park(child)
        else:
            self.post(child, rank)

    def _encode(self, child: Child, internal_id: str, request: EngineRequest) -> None:
        known = child.encoded_sampling if request.sampling is child.request.sampling else None
        child.internal_id = internal_id
        child.frames = encode_add(
            request,
            internal_id=internal_id,
            client_index=self._client_index,
            current_wave=self._waves.wave,
            sampling=known,
        )


_NOT_AWAITED = (EngineState.LOADING, EngineState.FAILED)


def _id_taken(request_id: str) -> RequestRejected:
    return RequestRejected(f"Request id {request_id} is already in use", param="request_id")


def _no_such_rank(rank: int, ranks: Collection[int]) -> RequestRejected:
    return RequestRejected(
        f"data_parallel_rank {rank} is out of range [{min(ranks)}, {max(ranks) + 1})",
        param="data_parallel_rank",
    )
