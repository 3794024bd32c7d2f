"""The reading half of a connection: bytes in, one request at a time out."""

import enum
import logging
import socket as stdlib_socket
from typing import Protocol

import trio

from vllmfront.api.http._deadlines import Deadline
from vllmfront.api.http._message import HttpRequest
from vllmfront.api.http._outlet import Outlet
from vllmfront.api.http._parser import RequestParser
from vllmfront.api.http._rejection import Rejection
from vllmfront.api.http._state import ServerState
from vllmfront.api.http._tls import TlsSession

_LOGGER = logging.getLogger(__name__)

_RECEIVE_BYTES = 64 * 1024
_MAX_AHEAD_BYTES = 64 * 1024
"""Pipelined bytes that may wait behind the request in progress; reading stops above."""

_PROGRESS_BYTES = 1024
"""What must arrive of a body for its time limit to start anew."""

_MAX_LINGER = 30.0
"""Seconds after which a client that goes on sending to a closed connection is cut off."""


class Phase(enum.Enum):
    """What is being waited for, and so which time limit runs.

    HANDSHAKE or IDLE at first; IDLE, HEAD, BODY and HELD go round; DISCARDING is the last.
    """

    HANDSHAKE = enum.auto()
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    HELD = enum.auto()
    """A request or its rejection is with the owner; no limit runs, and later bytes wait."""

    DISCARDING = enum.auto()
    """No request will be read any more; only the client's end is of interest."""


class IntakeOwner(Protocol):
    """The connection around an intake. The calls come from the server's reader or a time limit."""

    def on_request(self, request: HttpRequest) -> None:
        """The next request is here; no other comes before ``Intake.release``."""

    def on_rejection(self, rejection: Rejection) -> None:
        """What came is no request; no other one comes."""

    def on_patience_lost(self) -> None:
        """Nothing came for too long: a request, a handshake, or the client's goodbye."""

    def on_end_of_input(self) -> None:
        """The client has closed its side, or all of it."""

    def on_failure(self) -> None:
        """A fault of ours, which was logged: the connection cannot go on."""


class Intake:
    """Reads a socket for as long as it lives, whatever is done with the requests meanwhile.

    So the client's leaving is seen at any moment. The exception: a client that has sent more
    than ``_MAX_AHEAD_BYTES`` beyond the request in progress is not read until that is done.
    """

    def __init__(
        self,
        sock: stdlib_socket.socket,
        *,
        state: ServerState,
        parser: RequestParser,
        outlet: Outlet,
        owner: IntakeOwner,
        tls: TlsSession | None,
    ) -> None:
        self._socket = sock
        self._state = state
        self._config = state.config
        self._parser = parser
        self._outlet = outlet
        self._owner = owner
        self._tls = tls
        self._deadline = Deadline(self._on_timeout)
        self._progress = 0
        self._descriptor = sock.fileno()
        self._linger_until = 0.0
        self._watched = False
        self.phase = Phase.IDLE if tls is None else Phase.HANDSHAKE
        self.ended = False

    @property
    def keep_alive(self) -> bool:
        """Whether the client would use the connection again after the request in progress."""
        return self._parser.keep_alive

    @property
    def has_more(self) -> bool:
        """Whether bytes of a later request have arrived already."""
        return self._parser.buffered > 0

    def begin(self) -> None:
        """Read from now on, whenever there is something, until the client's end."""
        if self._tls is None:
            self._become_idle(first=True)
        else:
            assert self._config.tls is not None
            self._limit(self._config.tls.handshake_timeout)
        self._watch()

    def close(self) -> None:
        """Read no more; due before the socket is closed."""
        self._deadline.close()
        self._unwatch()

    def _watch(self) -> None:
        if not self._watched and not self.ended:
            self._state.readiness.watch(self._descriptor, self._on_readable)
            self._watched = True

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._state.readiness.unwatch(self._descriptor)

    def _on_readable(self) -> None:
        try:
            self._read()
        except Exception:
            _LOGGER.exception("Reading from an HTTP connection failed")
            self._unwatch()
            self._owner.on_failure()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
        elif self._tls is None or self.phase is Phase.DISCARDING:
            self._on_data(data)
        else:
            self._on_encrypted(self._tls, data)
        if self.phase is Phase.HELD and self._parser.buffered > _MAX_AHEAD_BYTES:
            self._unwatch()

    def _end(self) -> None:
        self.ended = True
        self._unwatch()
        self._owner.on_end_of_input()

    def _on_encrypted(self, tls: TlsSession, data: bytes) -> None:
        plain = tls.feed(data)
        if reply := tls.take_outgoing():
            self._outlet.send_raw_nowait(reply)
        if tls.established and self.phase is Phase.HANDSHAKE:
            self._outlet.encrypt_with(tls.encrypt)
            self._become_idle(first=True)
        if plain:
            self._on_data(plain)
        if tls.failed or tls.input_ended:
            self._end()

    def _on_data(self, data: bytes) -> None:
        if self.phase is Phase.DISCARDING:
            if trio.current_time() < self._linger_until:
                self._limit(self._config.linger_timeout)
            return
        if self.phase is Phase.IDLE:
            request = self._parser.take_whole(data)
            if request is not None:
                self.hold()
                self._owner.on_request(request)
                return
        self._parser.feed(data)
        if self.phase is not Phase.HELD:
            self._progress += len(data)
            self._take_next()

    def release(self) -> None:
        """Let the next request come: the one in progress is done."""
        self._become_idle()
        if self._parser.buffered:
            self._take_next()
            if self._parser.buffered <= _MAX_AHEAD_BYTES or self.phase is not Phase.HELD:
                self._watch()

    def discard(self) -> None:
        """Read no more requests, but go on reading until the client's end, or its time is up."""
        self.phase = Phase.DISCARDING
        self._linger_until = trio.current_time() + _MAX_LINGER
        self._limit(self._config.linger_timeout)
        self._watch()

    def _take_next(self) -> None:
        try:
            request = self._parser.next_request()
        except Rejection as rejection:
            self._reject(rejection)
            return
        if request is not None:
            self.hold()
            self._owner.on_request(request)
            return
        if self._parser.wants_continue:
            self._parser.wants_continue = False
            self._outlet.write_nowait(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._parser.in_body:
            if self.phase is not Phase.BODY or self._progress >= _PROGRESS_BYTES:
                self.phase = Phase.BODY
                self._progress = 0
                self._limit(self._config.body_timeout)
        elif self._parser.in_head and self.phase is not Phase.HEAD:
            self.phase = Phase.HEAD
            self._limit(self._config.header_timeout)

    def _reject(self, rejection: Rejection) -> None:
        self.hold()
        self._owner.on_rejection(rejection)

    def hold(self) -> None:
        """Let no further request come; what arrives from now on waits, and no limit runs."""
        self.phase = Phase.HELD
        self._deadline.clear()

    def _become_idle(self, *, first: bool = False) -> None:
        self.phase = Phase.IDLE
        self._progress = 0
        patience = self._config.keep_alive_timeout
        if first and not patience:
            patience = self._config.first_request_timeout
        self._limit(patience)

    def _limit(self, seconds: float) -> None:
        self._state.deadlines.set(self._deadline, seconds)

    def _on_timeout(self) -> None:
        if self.phase in (Phase.HEAD, Phase.BODY):
            part = self.phase.name.lower()
            self._reject(Rejection(408, f"the {part} of the request took too long"))
        else:
            self._owner.on_patience_lost()
