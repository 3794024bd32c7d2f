"""Ranks of several processes that step together: rank 0 listens where INIT says, and counts.

A vote is two bytes, and so is a verdict. The end of a connection is the end of the group.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import attrs
import trio
import zmq

from vllmfront.engine.transport import (
    MessageRouter,
    PeerChange,
    PeerGone,
    PeerMonitor,
    open_monitor,
    open_router,
    tcp_address,
)
from vllmfront.engine.wire import Init
from vllmfront.errors import ProtocolError
from vllmfront.simulator._lockstep import Group, LockstepGroup, LockstepMeeting, Verdict, Vote
from vllmfront.simulator._sockets import Context, Dealer, connect_dealer

_JOIN = b"join"
_COMPLETE = b"complete"
_BROKEN = b"broken "


@attrs.frozen
class MeetingPoint:
    """Where ranks of several processes find each other."""

    address: str
    size: int
    """How many there are."""


def meeting_point(init: Init, ranks: int) -> MeetingPoint | None:
    """Return where INIT has ranks meet; None where the *ranks* of this process are all.

    Raises:
        ProtocolError: It says how many there are, but not where.
    """
    said = init.parallel_config
    size = said.get("data_parallel_size", ranks)
    if size == ranks:
        return None
    host, port = said.get("data_parallel_master_ip"), said.get("data_parallel_master_port")
    if type(size) is not int or type(host) is not str or type(port) is not int:
        raise ProtocolError(f"engines cannot find each other by {said!r}")
    return MeetingPoint(tcp_address(host, port), size)


class RemoteGroup:
    """One rank's share in a group of several processes; used as a ``LockstepGroup`` is."""

    def __init__(self, dealer: Dealer, size: int, wake: Callable[[], None]) -> None:
        self.broken: str | None = None
        self.size = size
        self._dealer = dealer
        self._wake = wake
        self._verdict: Verdict | None = None
        self._complete = trio.Event()

    def __repr__(self) -> str:
        return f"<RemoteGroup {self._dealer.address}, broken: {self.broken}>"

    async def wait_complete(self) -> None:
        """Return once all ranks are there."""
        self._dealer.send(_JOIN)
        await self._complete.wait()

    def vote(self, rank: int, vote: Vote) -> None:
        del rank
        self._dealer.send(bytes([vote.unfinished, vote.pausing]))

    def has_verdict(self, rank: int) -> bool:
        del rank
        return self._verdict is not None

    def take_verdict(self, rank: int) -> Verdict | None:
        del rank
        verdict, self._verdict = self._verdict, None
        return verdict

    async def read(self) -> None:
        """Take what rank 0 says until cancelled."""
        while True:
            word = (await self._dealer.receive())[0].bytes
            if word == _COMPLETE:
                self._complete.set()
            elif word.startswith(_BROKEN):
                self._break(word.removeprefix(_BROKEN).decode())
            else:
                self._verdict = Verdict(unfinished=bool(word[0]), pausing=bool(word[1]))
                self._wake()

    async def watch(self, monitor: PeerMonitor) -> None:
        """Note the end of the connection, until cancelled."""
        while True:
            await monitor.wait_event()
            event = monitor.event_nowait()
            if event is not None and event.change is PeerChange.LEFT:
                self._break("rank 0, with which it steps together, has ended")

    def _break(self, why: str) -> None:
        self.broken = self.broken or why
        self._complete.set()  # it never will be, and whoever waits has to learn that
        self._wake()


@asynccontextmanager
async def open_remote_group(
    context: Context, rank: int, place: MeetingPoint, wake: Callable[[], None]
) -> AsyncGenerator[RemoteGroup]:
    """Belong to the group at *place* for the block, which begins when all are there."""
    with (
        connect_dealer(context, place.address, rank) as dealer,
        open_monitor(dealer) as monitor,
    ):
        group = RemoteGroup(dealer, place.size, wake)
        async with trio.open_nursery() as nursery:
            if rank == 0:
                await nursery.start(_serve_hub, context, place)
            nursery.start_soon(group.read)
            nursery.start_soon(group.watch, monitor)
            await group.wait_complete()
            yield group
            nursery.cancel_scope.cancel(reason="the rank has ended")


@asynccontextmanager
async def join_group(  # noqa: PLR0917 - an engine's own, in the order of their making
    context: Context,
    init: Init,
    ranks: int,
    rank: int,
    meeting: LockstepMeeting,
    wake: Callable[[], None],
) -> AsyncGenerator[Group]:
    """Belong to the group of all ranks for the block, which begins when all are there.

    Args:
        context: Whose I/O threads serve it.
        init: Says whether there are more than the ranks of this process, and where.
        ranks: Of this process.
        rank: The one that joins.
        meeting: Where those of this process find each other.
        wake: Called when something was decided.

    Raises:
        ProtocolError: INIT makes no sense.
    """
    place = meeting_point(init, ranks)
    if place is not None:
        async with open_remote_group(context, rank, place, wake) as remote:
            yield remote
        return
    group = meeting.join(rank, wake)
    try:
        await group.wait_complete()
        yield group
    finally:
        group.leave(rank)


async def _serve_hub(
    context: Context,
    place: MeetingPoint,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with open_router(context, place.address) as router, open_monitor(router) as monitor:
        hub = _Hub(router, place.size)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hub.serve_votes)
            nursery.start_soon(hub.serve_departures, monitor)
            task_status.started()


class _Hub:
    """A group whose members are connected ranks."""

    def __init__(self, router: MessageRouter, size: int) -> None:
        self._router = router
        self._size = size
        self._group = LockstepGroup(size)
        self._ranks: dict[int, int] = {}
        """By the descriptors of their connections."""

    async def serve_votes(self) -> None:
        while True:
            frames = await self._router.receive()
            rank = int.from_bytes(frames[0].bytes, "little")
            word = frames[1].bytes
            if word != _JOIN:
                vote = Vote(unfinished=bool(word[0]), pausing=bool(word[1]))
                self._group.vote(rank, vote)
                continue
            descriptor = frames[0].get(zmq.SRCFD)
            assert isinstance(descriptor, int)
            self._ranks[descriptor] = rank
            self._join(rank)

    def _join(self, rank: int) -> None:
        if not self._group.admits(rank):
            # It is new, and the others are not: all have to begin anew, at another place.
            self._group.leave(rank)
            self._send(rank, _BROKEN + b"it is new, and the other ranks are not")
            return
        self._group.join(rank, lambda: self._tell(rank))
        if len(self._ranks) == self._size:
            for each in self._ranks.values():
                self._send(each, _COMPLETE)

    async def serve_departures(self, monitor: PeerMonitor) -> None:
        while True:
            await monitor.wait_event()
            event = monitor.event_nowait()
            if event is not None and event.change is PeerChange.LEFT:
                rank = self._ranks.pop(event.descriptor, None)
                if rank is not None:
                    self._group.leave(rank)

    def _tell(self, rank: int) -> None:
        verdict = self._group.take_verdict(rank)
        if self._group.broken is not None:
            self._send(rank, _BROKEN + self._group.broken.encode())
        elif verdict is not None:
            self._send(rank, bytes([verdict.unfinished, verdict.pausing]))

    def _send(self, rank: int, word: bytes) -> None:
        try:
            self._router.send_nowait(rank.to_bytes(2, "little"), [word])
        except PeerGone:
            return  # its connection's end is told by the monitor
