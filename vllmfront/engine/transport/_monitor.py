"""Who comes and goes at a socket."""

import enum
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import zmq

from vllmfront.engine.transport._sockets import MessageReceiver

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED

_EVENT = struct.Struct("=Hi")
"""The first frame of a report: which event, and its value, here a descriptor. Read by hand, since
what pyzmq has for it imports all of asyncio."""


class PeerChange(enum.Enum):
    CAME = enum.auto()
    LEFT = enum.auto()


@attrs.frozen
class PeerEvent:
    """A connection began or ended."""

    change: PeerChange
    descriptor: int
    """Its own, as ``zmq.SRCFD`` tells for messages; free for the next one when it has ended."""


class PeerMonitor:
    """The comings and goings at one socket, in order.

    The I/O thread reports a connection's end before it lets another use its descriptor, so
    whoever drains the monitor before reading the socket never takes one peer for another.
    """

    def __init__(self, receiver: MessageReceiver) -> None:
        self._receiver = receiver
        self.connected = set[int]()
        """Descriptors of the present connections, as far as events were taken."""

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
        event, descriptor = _EVENT.unpack(message[0].bytes)
        if event == zmq.EVENT_DISCONNECTED:
            self.connected.discard(descriptor)
            return PeerEvent(PeerChange.LEFT, descriptor)
        self.connected.add(descriptor)
        return PeerEvent(PeerChange.CAME, descriptor)


@contextmanager
def open_monitor(socket: MessageReceiver) -> Iterator[PeerMonitor]:
    """Watch the connections of *socket* for the block."""
    with socket.monitored(_EVENTS) as receiver:
        yield PeerMonitor(receiver)
