"""The frontend's half of the handshake."""

import logging
from typing import Protocol

from vllmfront.engine.handshake._roster import Roster
from vllmfront.engine.transport import Message, MessageRouter, PeerGone
from vllmfront.engine.wire import (
    EngineAddresses,
    Hello,
    Registration,
    decode_handshake,
    decode_registration,
    encode_init,
)
from vllmfront.errors import ProtocolError

logger = logging.getLogger(__name__)

_IDENTITY_BYTES = 2


class Members(Protocol):
    """Who is told about engines that come and join."""

    def engine_arrived(self, rank: int) -> None:
        """Take note of a new process of *rank*; its predecessor, if any, is gone for good."""

    def engine_joined(self, rank: int, registration: Registration) -> None:
        """Take note that *rank* can serve."""


async def serve_handshake(
    router: MessageRouter, roster: Roster, addresses: EngineAddresses, members: Members
) -> None:
    """Answer engines until cancelled; those that come back later as well.

    A message that makes no sense costs that message and a log line.
    """
    while True:
        message = await router.receive()
        try:
            _take_handshake(router, message, roster, addresses, members)
        except ProtocolError as error:
            logger.warning("Ignored a handshake message: %s", error)


def _take_handshake(
    router: MessageRouter,
    message: Message,
    roster: Roster,
    addresses: EngineAddresses,
    members: Members,
) -> None:
    rank = _rank_of(message, roster)
    step = decode_handshake(message[1].bytes)
    if isinstance(step, Hello):
        roster.hello(rank)
        members.engine_arrived(rank)
        try:
            router.send_nowait(message[0].bytes, [encode_init(addresses)])
        except PeerGone:
            logger.warning("Engine %d left before it got its addresses", rank)
            return
        logger.info("Engine %d said HELLO and got its addresses; it is loading", rank)
        return
    registration = roster.ready(rank)
    if registration is not None:
        members.engine_joined(rank, registration)


def take_registration(message: Message, roster: Roster, members: Members) -> int:
    """Read what an engine says on its input socket; return its rank.

    Raises:
        ProtocolError: It is no registration of an expected engine.
    """
    rank = _rank_of(message, roster)
    registration = decode_registration(message[1].bytes)
    joined = roster.register(rank, registration)
    if joined is not None:
        members.engine_joined(rank, joined)
    return rank


def _rank_of(message: Message, roster: Roster) -> int:
    if len(message) != 2:  # noqa: PLR2004 (identity and payload)
        raise ProtocolError(f"a message of {len(message)} frames, not identity and payload")
    identity = message[0].bytes
    if len(identity) != _IDENTITY_BYTES:
        raise ProtocolError(f"identity {identity.hex()} is no engine rank")
    rank = int.from_bytes(identity, "little")
    if rank not in roster:
        expected = ", ".join(map(str, roster.ranks))
        raise ProtocolError(f"engine {rank} is none of the expected engines ({expected})")
    return rank


def identity_of(rank: int) -> bytes:
    """Return the identity under which *rank* connects."""
    return rank.to_bytes(_IDENTITY_BYTES, "little")
