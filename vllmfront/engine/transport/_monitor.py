"""Who comes and goes at a socket."""

import enum
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import zmq
from zmq.utils.monitor import parse_monitor_message

from vllmfront.engine.transport._sockets import MessageReceiver, MessageRouter

_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class PeerChange(enum.Enum):
    CAME = enum.auto()
    """A peer finished its greeting; messages to it can be sent now."""

    LEFT = enum.auto()
    """A connection ended."""


@attrs.frozen
class PeerEvent:
    change: PeerChange
    descriptor: int
    """Of the connection that ended, as ``zmq.SRCFD`` tells for messages; 0 for one that came."""


class PeerMonitor:
    """The comings and goings at one router, in order.

    The I/O thread reports a connection's end before it lets another use its descriptor, so
    whoever drains the monitor before reading the router never takes one peer for another.
    """

    def __init__(self, receiver: MessageReceiver) -> None:
        self._receiver = receiver

    async def wait_event(self) -> None:
        """Return once an event is waiting; a checkpoint in any case.

        Raises:
            trio.BusyResourceError: Another task is waiting already.
        """
        await self._receiver.wait_message()

    def event_nowait(self) -> PeerEvent | None:
        """Return the next event, or None where none is waiting."""
        message = self._receiver.receive_nowait()
        if message is None:
            return None
        fields = parse_monitor_message([frame.bytes for frame in message])
        if fields["event"] == zmq.EVENT_DISCONNECTED:
            return PeerEvent(PeerChange.LEFT, int(fields["value"]))
        return PeerEvent(PeerChange.CAME, 0)


@contextmanager
def open_monitor(router: MessageRouter) -> Iterator[PeerMonitor]:
    """Watch the connections of *router* for the block."""
    with router.monitored(_EVENTS) as receiver:
        yield PeerMonitor(receiver)
