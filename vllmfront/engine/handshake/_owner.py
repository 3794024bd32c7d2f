"""The frontend's half of the handshake."""

import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Protocol

import trio
import zmq

from vllmfront.engine.handshake._directory import Directory
from vllmfront.engine.handshake._roster import Roster
from vllmfront.engine.transport import Message, MessageRouter, PeerGone, PeerMonitor
from vllmfront.engine.wire import (
    Hello,
    Ready,
    Registration,
    decode_frontend_hello,
    decode_handshake,
    decode_registration,
    encode_frontend_reply,
    encode_init,
)
from vllmfront.errors import ProtocolError, StartupFailed

_LOGGER = logging.getLogger(__name__)

_IDENTITY_BYTES = 2


class Members(Protocol):
    """Who is told about engines that come, join and leave."""

    def engine_arrived(self, rank: int, *, greets: bool = False) -> None:
        """Take note of a new process of *rank*; its predecessor, if any, is gone for good.

        Where it *greets* it has just said HELLO, and has no connections for data yet.
        """

    def engine_joined(self, rank: int, registration: Registration) -> None:
        """Take note that *rank* can serve."""

    def engine_left(self, rank: int) -> None:
        """Take note that the process of *rank* has gone before it said READY."""

    def engine_unfit(self, rank: int, error: StartupFailed) -> None:
        """Take note that the process of *rank* cannot work with those of other ranks."""


class HandshakeOwner:
    """Answers engines, those that come back later as well; the two ``serve`` tasks of it.

    A message that makes no sense costs that message and a log line. Whom the directory knows no
    answer for waits for it. Other frontends, and their engines, are answered as well.
    """

    def __init__(
        self,
        router: MessageRouter,
        monitor: PeerMonitor,
        *,
        roster: Roster,
        directory: Directory,
        members: Members,
        others: Roster | None = None,
        on_frontend: Callable[[], None] = lambda: None,
    ) -> None:
        """Answer at *router*.

        Args:
            router: Where engines say HELLO.
            monitor: Its connections.
            roster: Who is expected, for our client.
            directory: What they are told.
            members: Our client.
            others: Who is expected besides, for the clients of other frontends.
            on_frontend: Called when another frontend has said where it is.
        """
        self._router = router
        self._monitor = monitor
        self._roster = roster
        self._directory = directory
        self._members = members
        self._others = others
        self._on_frontend = on_frontend
        self._refusals: dict[bytes, str] = {}
        """What other frontends were refused for, by their identity; it is logged once."""

        self._hashes: dict[int, str] = {}
        """What present processes say of how they are configured to work together, by rank."""

        self._unanswered: dict[int, tuple[bytes, int]] = {}
        """Identity and descriptor of those whose HELLO has no answer yet, by rank."""

        self._loading: dict[int, int] = {}
        """Ranks that have not said READY, by the descriptor that their HELLO came over."""

        self._heard = set[int]()
        """Descriptors of present connections that a message came over."""

    @property
    def busy(self) -> bool:
        """Whether an engine is loading, or somebody has connected and not said anything yet."""
        self._take_waiting()
        return bool(self._loading) or not self._monitor.connected <= self._heard

    async def serve_messages(self) -> None:
        """Answer until cancelled."""
        while True:
            await self._router.wait_message()
            self._take_waiting()

    async def serve_departures(self) -> None:
        """Note engines whose connection ends while they load, until cancelled."""
        while True:
            await self._monitor.wait_event()
            self._take_waiting()

    def _take_waiting(self) -> None:
        """Read all messages, then give up those that have left: their last words count."""
        left = self._departures()
        while (message := self._router.receive_nowait()) is not None:
            # This message's connection may have the descriptor of one that ended before it.
            left |= self._departures()
            try:
                rank = self._take(message)
            except ProtocolError as error:
                _LOGGER.warning("Ignored a handshake message: %s", error)
            else:
                left -= {rank}
        for rank in left:
            self._note_left(rank)

    def _departures(self) -> set[int]:
        left = set[int]()
        while (event := self._monitor.event_nowait()) is not None:
            self._heard.discard(event.descriptor)
            rank = self._loading.pop(event.descriptor, None)
            if rank is not None:
                self._unanswered.pop(rank, None)
                left.add(rank)
        return left

    def _take(self, message: Message) -> int | None:
        """Take a message in; return the rank that sent it, if it was an engine."""
        descriptor = message[0].get(zmq.SRCFD)
        assert isinstance(descriptor, int)
        self._heard.add(descriptor)
        if self._others is not None and len(message[0].bytes) != _IDENTITY_BYTES:
            self._greet(message)
            return None
        others = () if self._others is None else self._others.ranks
        rank = rank_of(message, (*self._roster.ranks, *others))
        roster = self._roster if rank in self._roster else self._others
        assert roster is not None
        step = decode_handshake(message[1].bytes)
        self._loading = {fd: other for fd, other in self._loading.items() if other != rank}
        if not isinstance(step, Hello):
            if (unfit := self._compare(rank, step)) is not None:
                self._refuse(rank, unfit)
                return rank
            registration = roster.ready(rank, trio.current_time())
            if registration is not None:
                self._members.engine_joined(rank, registration)
            return rank
        self._hashes.pop(rank, None)
        roster.hello(rank, trio.current_time())
        if roster is self._roster:
            self._members.engine_arrived(rank, greets=True)
        self._answer(rank, message[0].bytes, descriptor)
        return rank

    def _greet(self, message: Message) -> None:
        """Answer another frontend, and those who have waited for it."""
        identity = message[0].bytes
        hello = decode_frontend_hello(message[-1].bytes)
        reply = self._directory.introduce(hello)
        if reply.refusal is None:
            self._refusals.pop(identity, None)
        elif self._refusals.get(identity) != reply.refusal:
            self._refusals[identity] = reply.refusal
            _LOGGER.error("Refused the frontend of engine %d: %s", hello.start_rank, reply.refusal)
        with contextlib.suppress(PeerGone):
            self._router.send_nowait(identity, [encode_frontend_reply(reply)])
        self._on_frontend()
        if not self._directory.missing():
            waiting, self._unanswered = self._unanswered, {}
            for rank, (engine, descriptor) in waiting.items():
                self._answer(rank, engine, descriptor)

    def _compare(self, rank: int, ready: Ready) -> StartupFailed | None:
        """Say why *rank* cannot work with the others, which step together with it, if they do."""
        own = ready.parallel_config_hash
        if own is None:
            return None
        self._hashes[rank] = own
        others = [other for other, found in self._hashes.items() if found != own]
        if not others:
            return None
        return StartupFailed(
            f"engine {rank} is configured otherwise than engine {', '.join(map(str, others))}, "
            "with which it has to step together; start all engines with the same options"
        )

    def _refuse(self, rank: int, error: StartupFailed) -> None:
        if rank in self._roster:
            self._members.engine_unfit(rank, error)
        else:
            _LOGGER.error("%s", error)

    def _note_left(self, rank: int) -> None:
        if rank in self._roster:
            self._members.engine_left(rank)

    def _answer(self, rank: int, identity: bytes, descriptor: int) -> None:
        """Tell *rank* what it needs to know, now or later."""
        self._loading[descriptor] = rank
        init = self._directory.init_for(rank)
        if init is None:
            self._unanswered[rank] = identity, descriptor
            _LOGGER.info("Engine %d said HELLO; it waits until all frontends are known", rank)
            return
        try:
            self._router.send_nowait(identity, [encode_init(init.addresses, init.parallel_config)])
        except PeerGone:
            _LOGGER.warning("Engine %d left before it got its addresses", rank)
            self._loading.pop(descriptor, None)
            self._note_left(rank)
            return
        _LOGGER.info("Engine %d said HELLO and got its addresses; it is loading", rank)


def take_registration(message: Message, roster: Roster, members: Members) -> int:
    """Read what an engine says on its input socket; return its rank.

    Raises:
        OthersEngine: It is about an engine of another frontend.
        ProtocolError: It is no registration of an expected engine.
    """
    if _is_others(message, roster):
        raise OthersEngine
    rank = rank_of(message, roster.ranks)
    registration = decode_registration(message[1].bytes)
    now = trio.current_time()
    if roster.unannounced(rank):
        roster.hello(rank, now)
        roster.ready(rank, now)
        members.engine_arrived(rank)
    joined = roster.register(rank, registration, now)
    if joined is not None:
        members.engine_joined(rank, joined)
    return rank


class OthersEngine(ProtocolError):
    """Raised when an engine registers with us that is told about us, but served by others."""


def _is_others(message: Message, roster: Roster) -> bool:
    identity = message[0].bytes
    return len(identity) == _IDENTITY_BYTES and int.from_bytes(identity, "little") in roster.others


def rank_of(message: Message, expected: Collection[int]) -> int:
    """Return whose message it is: one of an identity and a payload.

    Raises:
        ProtocolError: It is something else, or its sender is none of those *expected*.
    """
    if len(message) != 2:  # noqa: PLR2004 (identity and payload)
        raise ProtocolError(f"a message of {len(message)} frames, not identity and payload")
    identity = message[0].bytes
    if len(identity) != _IDENTITY_BYTES:
        raise ProtocolError(f"identity {identity.hex()} is no engine rank")
    rank = int.from_bytes(identity, "little")
    if rank not in expected:
        known = ", ".join(map(str, expected))
        raise ProtocolError(f"engine {rank} is none of the expected engines ({known})")
    return rank


def identity_of(rank: int) -> bytes:
    """Return the identity under which *rank* connects."""
    return rank.to_bytes(_IDENTITY_BYTES, "little")
