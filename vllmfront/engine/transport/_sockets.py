"""ZeroMQ sockets that wait the Trio way.

The descriptor of a ZeroMQ socket reports *changes*, for both directions at once, and every call
into the socket (a receive, a send, a look at its events) may use such a report up. So one task
owns the waiting, it looks at the events again before it sleeps, and a send by anybody else that
used up the owner's report wakes the owner.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import trio
import zmq

from vllmfront.engine.transport._addresses import adopted_address
from vllmfront.engine.transport._errors import PeerGone
from vllmfront.engine.transport._heartbeat import watch_peers

Message = list[zmq.Frame]
"""The frames of one message; a frame knows the descriptor it came over (``zmq.SRCFD``)."""


# Plain numbers: joining the library's enums costs as much as the calls that they are for.
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_LAST = int(zmq.DONTWAIT)
_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)


class MessageReceiver:
    """A bound socket that one task receives from; closed by leaving its ``with`` block."""

    def __init__(
        self, socket: zmq.Socket[bytes], *, unlink: Path | None = None, linger: int = 0
    ) -> None:
        self._socket = socket
        self._linger = linger
        self._fd = int(socket.getsockopt(zmq.FD))
        self._unlink = unlink
        self._waiting = False
        self.address: str = _endpoint(socket)
        """Where peers connect, with the port that the kernel chose."""

    def __repr__(self) -> str:
        state = "closed" if self._socket.closed else "waiting" if self._waiting else "idle"
        return f"<{type(self).__name__} {self.address} {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def receive_nowait(self) -> Message | None:
        """Return the next message, or None where none is waiting.

        Raises:
            trio.ClosedResourceError: The socket was closed.
        """
        receive = self._socket.recv
        try:
            frame = receive(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise closed_error(error) from error
        message = [frame]
        while frame.more:
            # A message arrives whole: its other frames are there already.
            frame = receive(zmq.DONTWAIT, copy=False)
            message.append(frame)
        return message

    async def wait_message(self) -> None:
        """Return once a message is waiting; a checkpoint in any case. Cancelled, it loses none.

        Raises:
            trio.BusyResourceError: Another task is waiting already.
            trio.ClosedResourceError: The socket is, or gets, closed.
        """
        if self._waiting:
            raise trio.BusyResourceError("another task is receiving from this socket")
        self._waiting = True
        try:
            if self._has_message():
                await trio.lowlevel.checkpoint()
                return
            while True:
                await self._sleep_until_report()
                if self._has_message():
                    return
        finally:
            self._waiting = False

    async def receive(self) -> Message:
        """Return the next message; cancelled, it loses none.

        Raises:
            trio.BusyResourceError: Another task is waiting already.
            trio.ClosedResourceError: The socket is, or gets, closed.
        """
        while True:
            await self.wait_message()
            message = self.receive_nowait()
            if message is not None:
                return message

    def close(self) -> None:
        """Close the socket and remove its file; a waiting task gets ``ClosedResourceError``."""
        if self._socket.closed:
            return
        if self._waiting:
            trio.lowlevel.notify_closing(self._fd)
        self._socket.close(linger=self._linger)
        if self._unlink is not None:
            self._unlink.unlink(missing_ok=True)

    @contextmanager
    def monitored(self, events: int) -> Iterator["MessageReceiver"]:
        """Report *events* of this socket's connections for the block, in ZeroMQ's own form."""
        with MessageReceiver(self._socket.get_monitor_socket(events)) as receiver:
            try:
                yield receiver
            finally:
                if not self._socket.closed:
                    self._socket.disable_monitor()

    def _has_message(self) -> bool:
        try:
            return bool(int(self._socket.getsockopt(_EVENTS)) & _POLLIN)
        except zmq.ZMQError as error:
            raise closed_error(error) from error

    async def _sleep_until_report(self) -> None:
        # Nobody else touches a socket that only receives, so no report gets lost.
        await trio.lowlevel.wait_readable(self._fd)


class TwoWaySocket(MessageReceiver):
    """A socket that one task receives from, and that every task may send through."""

    def __init__(
        self, socket: zmq.Socket[bytes], *, unlink: Path | None = None, linger: int = 0
    ) -> None:
        super().__init__(socket, unlink=unlink, linger=linger)
        # Without pyzmq's own layer for kinds of sockets that this is none of.
        self._send = super(zmq.Socket, socket).send
        self._sleep: trio.CancelScope | None = None

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Queue one message.

        Raises:
            trio.ClosedResourceError: The socket was closed.
        """
        try:
            for frame in frames[:-1]:
                self._send(frame, _MORE)
            self._send(frames[-1], _LAST)
        except zmq.ZMQError as error:
            raise closed_error(error) from error
        finally:
            self.wake_owner()

    def wake_owner(self) -> None:
        """Wake the owner if sends have used up the report that it sleeps for."""
        if self._sleep is not None and not self._socket.closed and self._has_message():
            self._sleep.cancel(reason="a send saw a waiting message")

    async def _sleep_until_report(self) -> None:
        try:
            with trio.CancelScope() as self._sleep:
                await trio.lowlevel.wait_readable(self._fd)
        finally:
            self._sleep = None


class MessageRouter(TwoWaySocket):
    """A bound ROUTER."""

    def send_nowait(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """Queue one message for the peer with *identity*.

        Raises:
            PeerGone: No such peer is connected.
            trio.ClosedResourceError: The socket was closed.
        """
        try:
            self.send_among_others(identity, frames)
        finally:
            self.wake_owner()

    def send_among_others(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """As ``send_nowait``, for one of several messages: ``wake_owner`` is due after the last."""
        try:
            send = self._send
            send(identity, _MORE)
            for frame in frames[:-1]:
                send(frame, _MORE)
            send(frames[-1], _LAST)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise PeerGone(identity) from error
            raise closed_error(error) from error


def _endpoint(socket: zmq.Socket[bytes]) -> str:
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def closed_error(error: zmq.ZMQError) -> BaseException:
    """Return what *error* means to who uses a socket."""
    if error.errno in {zmq.ENOTSOCK, zmq.ETERM}:
        return trio.ClosedResourceError("this socket was closed")
    return error


@contextmanager
def open_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """Hold ZeroMQ's I/O threads for the block; sockets still open at its end are closed."""
    context = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)


def open_router(
    context: zmq.Context[zmq.Socket[bytes]],
    address: str,
    *,
    adopt_fd: int | None = None,
    linger: int = 0,
) -> MessageRouter:
    """Bind a ROUTER that says when a peer is missing and lets a peer come back as itself.

    Args:
        context: Whose I/O threads serve it.
        address: Where to bind; empty together with *adopt_fd*.
        adopt_fd: A listening descriptor to serve instead; the socket owns it from now on.
        linger: Milliseconds that unsent messages get to leave when it closes.

    Raises:
        OSError: The address cannot be bound.
        ConfigurationError: *adopt_fd* is no listening socket.
    """
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    return MessageRouter(socket, unlink=bind(socket, address, adopt_fd), linger=linger)


def open_receiver(
    context: zmq.Context[zmq.Socket[bytes]], address: str, *, adopt_fd: int | None = None
) -> MessageReceiver:
    """Bind a PULL socket; arguments and errors as for ``open_router``."""
    socket = context.socket(zmq.PULL)
    return MessageReceiver(socket, unlink=bind(socket, address, adopt_fd))


def bind(socket: zmq.Socket[bytes], address: str, adopt_fd: int | None) -> Path | None:
    """Bind *socket* without limits on its queues; return the file that closing must remove."""
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        if adopt_fd is not None:
            address = adopted_address(adopt_fd)
        if "[" in address:
            socket.setsockopt(zmq.IPV6, 1)
        if adopt_fd is not None:
            socket.setsockopt(zmq.USE_FD, adopt_fd)
        watch_peers(socket, address)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"cannot bind {address}: {error.strerror}") from error
    except BaseException:
        socket.close(linger=0)
        raise
    if adopt_fd is None and address.startswith("ipc://"):
        return Path(address.removeprefix("ipc://"))
    return None
