"""The one way bytes leave a connection."""

import fcntl
import socket as stdlib_socket
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from vllmfront.api.http._write_batch import WriteBatch

_BUFFERS_A_SEND = 64
"""How many unsent pieces go into one ``sendmsg``; the kernel's own limit is 1024."""


class OutletOwner(Protocol):
    """The connection around an outlet."""

    def on_tail(self) -> None:
        """The socket is full for the first time: see that ``flush`` runs, and set a limit."""

    def on_progress(self) -> None:
        """The client took some of the tail."""

    def on_drained(self) -> None:
        """The tail is gone."""

    def on_lost(self) -> None:
        """The socket is broken; nothing more will be sent."""


class Outlet:
    """Writes to a non-blocking socket and keeps what it does not take.

    It writes at once, unless *writes* gather: then at the end of that. The kept tail goes out
    before anything written later. Every write of a connection comes through here, whatever task
    it is made in; no call blocks.
    """

    __slots__ = (
        "_drained",
        "_encrypt",
        "_flushing",
        "_gathered",
        "_owner",
        "_socket",
        "_tail",
        "_writes",
        "broken",
        "drained_callback",
        "unsent",
    )

    def __init__(
        self, socket: stdlib_socket.socket, owner: OutletOwner, writes: WriteBatch
    ) -> None:
        self._socket = socket
        self._owner = owner
        self._writes = writes
        self._gathered = b""
        self._tail: deque[bytes | memoryview] = deque()
        self._encrypt: Callable[[bytes], bytes] | None = None
        self._flushing = False
        self._drained: trio.Event | None = None
        self.unsent = 0
        """Bytes of the tail, encrypted where the connection is."""

        self.broken = False
        """Once set, writes are dropped."""

        self.drained_callback: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Outlet unsent={self.unsent} broken={self.broken} flushing={self._flushing}>"

    def encrypt_with(self, encrypt: Callable[[bytes], bytes]) -> None:
        """Pass all later plain writes through *encrypt*."""
        self._encrypt = encrypt

    def write_nowait(self, data: bytes) -> None:
        """Send *data*, or as much of it as the socket takes, and keep the rest."""
        if self._encrypt is not None:
            if self.broken:
                return
            data = self._encrypt(data)
        self.send_raw_nowait(data)

    def send_raw_nowait(self, data: bytes) -> None:
        """As ``write_nowait``, for bytes that are already what goes on the wire."""
        if self.broken or not data:
            return
        if not self._writes.gathering:
            self._send(data)
        elif self._gathered:
            self._gathered += data
        else:
            self._gathered = data
            self._writes.add(self)

    def send_gathered(self) -> None:
        """Send what was written while writes were gathered; for those alone to call."""
        data, self._gathered = self._gathered, b""
        if not self.broken:
            self._send(data)

    def _send(self, data: bytes) -> None:
        if self.unsent:
            self._tail.append(data)
            self.unsent += len(data)
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose()
            return
        if sent != len(data):
            self._tail.append(memoryview(data)[sent:])
            self.unsent = len(data) - sent
            if not self._flushing:
                self._owner.on_tail()

    def bytes_in_kernel(self) -> int:
        """Return how much of what was sent the client's side has not acknowledged."""
        if self.broken:
            return 0
        try:
            answer = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int.from_bytes(answer, sys.byteorder)

    def drop(self) -> None:
        """Forget the tail and drop all later writes."""
        self.broken = True
        self._gathered = b""
        self._tail.clear()
        self.unsent = 0
        if self._drained is not None:
            self._drained.set()

    def _lose(self) -> None:
        self.drop()
        self._owner.on_lost()

    async def flush(self) -> None:
        """Send the tail as the socket takes it; return when it is gone, or the socket is lost."""
        self._flushing = True
        try:
            while self.unsent:
                await trio.lowlevel.wait_writable(self._socket)
                self._send_tail()
        finally:
            self._flushing = False

    def _send_tail(self) -> None:
        buffers = [self._tail[i] for i in range(min(len(self._tail), _BUFFERS_A_SEND))]
        try:
            sent = self._socket.sendmsg(buffers)
        except BlockingIOError:
            return
        except OSError:
            self._lose()
            return
        self.unsent -= sent
        for buffer in buffers:
            if sent < len(buffer):
                if sent:
                    self._tail[0] = memoryview(buffer)[sent:]
                break
            sent -= len(buffer)
            self._tail.popleft()
        if self.unsent:
            self._owner.on_progress()
        else:
            self._on_drained()

    def _on_drained(self) -> None:
        self._owner.on_drained()
        if self._drained is not None:
            self._drained.set()
            self._drained = None
        if self.drained_callback is not None:
            self.drained_callback()

    async def wait_drained(self) -> None:
        """Return once nothing is unsent, or the outlet is broken."""
        while self.unsent and not self.broken:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()
