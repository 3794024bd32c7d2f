"""One client connection: two tasks, one socket, requests one after the other."""

import logging
import socket as stdlib_socket
import ssl
import struct

import trio

from vllmfront.api.http._deadlines import Deadline
from vllmfront.api.http._message import CLIENT_GONE, CLIENT_STALLED, SHUTDOWN, HttpRequest
from vllmfront.api.http._outlet import Outlet
from vllmfront.api.http._parser import Http2Preface, RequestParser
from vllmfront.api.http._rejection import INTERNAL_ERROR, Rejection
from vllmfront.api.http._response import Response
from vllmfront.api.http._state import ServerState
from vllmfront.api.http._tls import TlsSession
from vllmfront.api.http._wakeup import Wakeup

logger = logging.getLogger(__name__)

_RECEIVE_BYTES = 64 * 1024
_MAX_AHEAD_BYTES = 64 * 1024
"""Pipelined bytes that may wait behind the request in progress; reading stops above."""

_PROGRESS_BYTES = 1024
"""What must arrive of a body for its time limit to start anew."""

_LOOKS = 8
"""How often a send timeout is checked before it is up; its precision."""

_MAX_LINGER = 30.0
"""Seconds after which a client that goes on sending to a closed connection is cut off."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Connection:
    """Reads requests from a socket that it owns, and runs the handler for each.

    One task reads, and so sees the client leave at any moment; the other runs handlers. The
    first reason to end the connection early is kept in ``close_cause``, and both tasks are
    cancelled.
    """

    def __init__(
        self,
        sock: stdlib_socket.socket,
        state: ServerState,
        *,
        tls: ssl.SSLContext | None = None,
        client: tuple[str, int] | None = None,
        server: tuple[str, int | None] | None = None,
    ) -> None:
        self._socket = sock
        self._state = state
        self._config = state.config
        self._outlet = Outlet(sock, self)
        self._tls = None if tls is None else TlsSession(tls)
        self._parser = RequestParser(
            state.config,
            scheme="http" if tls is None else "https",
            client=client,
            server=server,
            connection=self,
        )
        self._nursery: trio.Nursery | None = None
        self._read_deadline = Deadline(self._on_read_timeout)
        self._send_deadline = Deadline(self._look_at_reader)
        self._phase = ""
        self._progress = 0
        self._request: HttpRequest | None = None
        """The request in progress, until its response has left this process."""

        self._response: Response | None = None
        self._rejection: Rejection | None = None
        self._stopping = False
        """No further request is served; the runner hangs up."""

        self._input_ended = False
        self._discarding = False
        self._linger_until = 0.0
        self._in_kernel = 0
        """Bytes sent that the client had not taken, at the last look."""

        self._progress_at = 0.0
        self._abandoned = False
        """A response was left unfinished: only a cut tells the client."""

        self._reset = False
        """Close with a reset, which no client takes for a proper end."""

        self._work = Wakeup()
        self._room = Wakeup()
        self._closed: trio.Event | None = None
        self.close_cause: str | None = None

    def __repr__(self) -> str:
        busy = self._request.path if self._request else self._phase or "new"
        return f"<Connection {busy!r} unsent={self._outlet.unsent} cause={self.close_cause!r}>"

    # ConnectionState, for handlers

    async def wait_closed(self) -> None:
        if self.close_cause is not None:
            await trio.lowlevel.checkpoint()
            return
        if self._closed is None:
            self._closed = trio.Event()
        await self._closed.wait()

    # For the server

    @property
    def busy(self) -> bool:
        return self._request is not None

    async def run(self) -> None:
        """Serve the connection until it ends; every error but cancellation ends only it."""
        if self.close_cause is not None:
            self._close()
            return
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._read, name="http reader")
                await self._serve_requests()
                nursery.cancel_scope.cancel(reason="connection served")
        except Exception:
            logger.exception("An HTTP connection failed")
        finally:
            self._close()

    def drain(self) -> None:
        """Close now if idle; else after the response in progress."""
        if self._phase == "idle":
            self._stop()

    def cut(self, cause: str, *, reset: bool = False) -> None:
        """End the connection now, cancelling the handler; the first *cause* counts."""
        if self.close_cause is None:
            self.close_cause = cause
            if self._request is not None:
                self._state.ended[cause] += 1
            if self._closed is not None:
                self._closed.set()
        self._reset = self._reset or reset
        if cause != SHUTDOWN:
            self._outlet.drop()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=cause)

    def _close(self) -> None:
        self._read_deadline.close()
        self._send_deadline.close()
        if self._reset:
            self._socket.setsockopt(
                stdlib_socket.SOL_SOCKET, stdlib_socket.SO_LINGER, _RESET_ON_CLOSE
            )
        self._outlet.drop()
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    # The reading task

    async def _read(self) -> None:
        if self._tls is None:
            self._become_idle(first=True)
        else:
            self._state.deadlines.set(self._read_deadline, self._tls_patience())
            self._phase = "handshake"
        sock, descriptor = self._socket, self._socket.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            try:
                data = sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self._on_end_of_input()
                return
            if self._tls is None or self._discarding:
                self._on_data(data)
            elif not self._on_encrypted(self._tls, data):
                return
            if self._parser.buffered > _MAX_AHEAD_BYTES and self._request is not None:
                await self._room.wait()

    def _tls_patience(self) -> float:
        assert self._config.tls is not None
        return self._config.tls.handshake_timeout

    def _on_encrypted(self, tls: TlsSession, data: bytes) -> bool:
        """Take what came over TLS; False at the end of it."""
        plain = tls.feed(data)
        if reply := tls.take_outgoing():
            self._outlet.send_raw_nowait(reply)
        if tls.failed:
            self._on_end_of_input()
            return False
        if tls.established and self._phase == "handshake":
            self._outlet.encrypt_with(tls.encrypt)
            self._become_idle(first=True)
        if plain:
            self._on_data(plain)
        if tls.input_ended:
            self._on_end_of_input()
            return False
        return True

    def _on_data(self, data: bytes) -> None:
        if self._discarding:
            if trio.current_time() < self._linger_until:
                self._state.deadlines.set(self._read_deadline, self._config.linger_timeout)
            return
        self._parser.feed(data)
        if self._request is None and self._rejection is None:
            self._progress += len(data)
            self._advance()

    def _advance(self) -> None:
        """Read the next request out of what has arrived, and wake the runner for it."""
        try:
            request = self._parser.next_request()
        except Rejection as rejection:
            self._reject(rejection)
            return
        if request is not None:
            self._phase = "busy"
            self._read_deadline.clear()
            self._request = request
            self._work.wake()
            return
        if self._parser.wants_continue:
            self._parser.wants_continue = False
            self._outlet.write_nowait(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._parser.in_body:
            if self._phase != "body" or self._progress >= _PROGRESS_BYTES:
                self._phase = "body"
                self._progress = 0
                self._state.deadlines.set(self._read_deadline, self._config.body_timeout)
        elif self._parser.in_head and self._phase != "head":
            self._phase = "head"
            self._state.deadlines.set(self._read_deadline, self._config.header_timeout)

    def _reject(self, rejection: Rejection) -> None:
        self._read_deadline.clear()
        self._rejection = rejection
        self._work.wake()

    def _become_idle(self, *, first: bool = False) -> None:
        self._phase = "idle"
        self._progress = 0
        patience = self._config.keep_alive_timeout
        if first and not patience:
            patience = self._config.first_request_timeout
        self._state.deadlines.set(self._read_deadline, patience)

    def _on_end_of_input(self) -> None:
        self._input_ended = True
        if self._response is not None and not self._response.finished:
            self.cut(CLIENT_GONE)
        elif self._request is not None or self._outlet.unsent:
            self._stop()
        else:
            self._end_quietly()

    def _end_quietly(self) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel(reason="nothing left to do")

    def _stop(self) -> None:
        self._stopping = True
        self._read_deadline.clear()
        self._work.wake()

    def _on_read_timeout(self) -> None:
        if self._phase in ("head", "body"):
            self._state.ended[CLIENT_STALLED] += 1
            self._reject(Rejection(408, f"the request's {self._phase} took too long"))
        elif self._phase == "idle":
            self._stop()
        else:  # a handshake or a goodbye that takes too long
            self._end_quietly()

    # OutletOwner

    def on_tail(self) -> None:
        assert self._nursery is not None
        self.on_progress()
        self._state.deadlines.set(self._send_deadline, self._config.send_timeout / _LOOKS)
        self._nursery.start_soon(self._outlet.flush, name="http flush")

    def on_progress(self) -> None:
        self._in_kernel = self._outlet.bytes_in_kernel()
        self._progress_at = trio.current_time()

    def on_drained(self) -> None:
        self._send_deadline.clear()

    def on_lost(self) -> None:
        self.cut(CLIENT_GONE)

    def _look_at_reader(self) -> None:
        """Cut off a client that has taken nothing for the send timeout.

        The kernel calls a socket writable only when much of its large buffer is free, so what
        counts is what the buffer holds: a slow client may be reading all the while.
        """
        if self._outlet.bytes_in_kernel() < self._in_kernel:
            self.on_progress()
        left = self._progress_at + self._config.send_timeout - trio.current_time()
        if left <= 0:
            self.cut(CLIENT_STALLED, reset=True)
        else:
            tick = min(left, self._config.send_timeout / _LOOKS)
            self._state.deadlines.set(self._send_deadline, tick)

    def _on_overflow(self) -> None:
        self.cut(CLIENT_STALLED, reset=True)

    # The task that runs handlers

    async def _serve_requests(self) -> None:
        while True:
            if self._request is not None:
                if not await self._serve(self._request):
                    break
            elif self._rejection is not None:
                self._answer_rejection(self._rejection)
                break
            elif self._stopping:
                self._say_goodbye()
                return
            else:
                await self._work.wait()
        if not self._abandoned:
            await self._hang_up()

    async def _serve(self, request: HttpRequest) -> bool:
        """Answer *request*; return whether another one may follow."""
        await self._handle(request)
        await self._outlet.wait_drained()
        self._request = self._response = None
        if self._abandoned or self._stopping or self._state.draining:
            return False
        await self._look_ahead()
        return True

    async def _look_ahead(self) -> None:
        """Take the next request if it has arrived already; else be idle."""
        self._become_idle()
        if self._parser.buffered:
            await trio.lowlevel.checkpoint()
            if self._request is None:
                self._advance()
            self._room.wake()

    async def _handle(self, request: HttpRequest) -> None:
        state = self._state
        response = self._response = Response(
            self._outlet,
            state,
            version=request.http_version,
            head_only=request.method == "HEAD",
            reuse=self._parser.keep_alive and self._config.keep_alive_timeout > 0,
            on_overflow=self._on_overflow,
        )
        state.requests_total += 1
        state.requests_active += 1
        try:
            await state.handler(request, response)
        except Exception:
            logger.exception("The handler of %s %s failed", request.method, request.path)
        finally:
            state.requests_active -= 1
            self._conclude(request, response)
        if not response.reuse:
            self._stopping = True

    def _conclude(self, request: HttpRequest, response: Response) -> None:
        """See to it that the client got a whole response, or can tell that it did not."""
        finished, started = response.finished, response.started
        if not finished and not started and self.close_cause is None:
            response.respond(500, INTERNAL_ERROR)
        response.detach()
        if finished or not started:
            return
        self._reset = self._reset or response.close_delimited
        if self.close_cause is None:
            logger.error("%s %s: the response was left unfinished", request.method, request.path)
            self._abandoned = True

    def _answer_rejection(self, rejection: Rejection) -> None:
        self._state.rejected[rejection.status] += 1
        logger.debug("Refused a request with %d: %s", rejection.status, rejection.reason)
        if isinstance(rejection, Http2Preface):
            return
        headers = [(b"content-type", b"application/json")] if rejection.body else []
        headers.append((b"content-length", b"%d" % len(rejection.body)))
        headers.append((b"connection", b"close"))
        head = self._state.heads.general("1.1", rejection.status, headers)
        self._outlet.write_nowait(head + rejection.body)

    def _say_goodbye(self) -> None:
        if self._tls is not None and self._tls.established:
            self._outlet.send_raw_nowait(self._tls.close_notify())

    async def _hang_up(self) -> None:
        """Close so that what was sent arrives: a close with unread input would reset it."""
        self._discarding = True
        self._linger_until = trio.current_time() + _MAX_LINGER
        self._room.wake()
        self._say_goodbye()
        await self._outlet.wait_drained()
        if self._input_ended or self._outlet.broken:
            return
        try:
            self._socket.shutdown(stdlib_socket.SHUT_WR)
        except OSError:
            return
        self._phase = "goodbye"
        self._state.deadlines.set(self._read_deadline, self._config.linger_timeout)
        await trio.sleep_forever()
