"""One client connection: one task, one socket, requests one after the other."""

import contextlib
import logging
import socket as stdlib_socket
import ssl
import struct

import trio

from vllmfront.api.http._answering import Answering
from vllmfront.api.http._intake import Intake, Phase
from vllmfront.api.http._message import CLIENT_GONE, CLIENT_STALLED, SHUTDOWN, HttpRequest
from vllmfront.api.http._outlet import Outlet
from vllmfront.api.http._parser import RequestParser
from vllmfront.api.http._rejection import Rejection
from vllmfront.api.http._request_head import Http2Preface
from vllmfront.api.http._send_watch import SendWatch
from vllmfront.api.http._state import ServerState
from vllmfront.api.http._tls import TlsSession
from vllmfront.api.http._wakeup import Wakeup

_LOGGER = logging.getLogger(__name__)

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Connection:
    """Owns a socket, reads requests from it, and runs the handler for each.

    Its task runs handlers, but for those that answer by calls. The server's reader calls it
    whenever there is something to read, and so the client's leaving is seen at any moment. The
    first reason to end the connection early is kept in ``close_cause``, and the task is cancelled.
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
        self._outlet = Outlet(sock, self, state.writes)
        self._tls = None if tls is None else TlsSession(tls)
        parser = RequestParser(
            state.config,
            heads=state.head_reader,
            scheme="http" if tls is None else "https",
            client=client,
            server=server,
            connection=self,
        )
        self._intake = Intake(
            sock, state=state, parser=parser, outlet=self._outlet, owner=self, tls=self._tls
        )
        self._send_watch = SendWatch(
            self._outlet, state.deadlines, state.config.send_timeout, self.on_stalled
        )
        self._nursery: trio.Nursery | None = None
        self._work = Wakeup()
        self._answering = Answering(self._outlet, state, self)
        self._answered = False
        """A request has been answered, and the next one may not come yet."""

        self._rejection: Rejection | None = None
        self._stopping = False
        """No further request is served."""

        self._abandoned = False
        """A response was left unfinished: only a cut tells the client."""

        self._reset = False
        """Close with a reset, which no client takes for a proper end."""

        self._closed: trio.Event | None = None
        self.close_cause: str | None = None

    def __repr__(self) -> str:
        request = self._answering.request
        doing = request.path if request else self._intake.phase.name
        return f"<Connection {doing} unsent={self._outlet.unsent} cause={self.close_cause!r}>"

    # ConnectionState, for handlers

    async def wait_closed(self) -> None:
        if self.close_cause is not None:
            await trio.lowlevel.checkpoint()
            return
        if self._closed is None:
            self._closed = trio.Event()
        await self._closed.wait()

    # For the server

    async def run(self) -> None:
        """Serve the connection until it ends; every error but cancellation ends only it."""
        try:
            if self.close_cause is None:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._intake.begin()
                    try:
                        await self._serve_requests()
                    finally:
                        self._say_goodbye()
                    nursery.cancel_scope.cancel(reason="connection served")
        except Exception:
            _LOGGER.exception("An HTTP connection failed")
        finally:
            self._close()

    def drain(self) -> None:
        """Close now if idle; else after the response in progress."""
        if self._intake.phase is Phase.IDLE:
            self._stop()

    def cut(self, cause: str, *, reset: bool = False) -> None:
        """End the connection now, cancelling the handler; the first *cause* counts."""
        if self.close_cause is None:
            self.close_cause = cause
            if self._answering.request is not None:
                self._state.ended[cause] += 1
            if self._closed is not None:
                self._closed.set()
        self._reset = self._reset or reset
        if cause != SHUTDOWN:  # at a shutdown handlers may say a last word
            self._outlet.drop()
        self._cancel(cause)

    def _cancel(self, reason: str) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason=reason)

    def _stop(self) -> None:
        self._stopping = True
        self._work.wake()

    def _close(self) -> None:
        self._intake.close()
        self._send_watch.close()
        self._outlet.drop()
        if self._reset:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(
                    stdlib_socket.SOL_SOCKET, stdlib_socket.SO_LINGER, _RESET_ON_CLOSE
                )
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()

    # IntakeOwner

    def on_request(self, request: HttpRequest) -> None:
        reuse = self._intake.keep_alive and self._state.config.keep_alive_timeout > 0
        self._answering.begin(request, reuse=reuse)

    def on_rejection(self, rejection: Rejection) -> None:
        self._rejection = rejection
        self._work.wake()

    def on_patience_lost(self) -> None:
        if self._intake.phase is Phase.IDLE:
            self._stop()
        else:
            self._cancel("the client took too long")

    def on_end_of_input(self) -> None:
        request = self._answering.request
        if request is not None and not self._answering.finished:
            self.cut(CLIENT_GONE)
        elif request is not None or self._outlet.unsent:
            self._stop()
        else:
            self._cancel("the client has closed the connection")

    def on_failure(self) -> None:
        self._cancel("reading failed")

    # AnsweringOwner

    def on_pending(self) -> None:
        self._work.wake()

    def on_abandoned(self, *, reset: bool) -> None:
        self._abandoned = self._stopping = True
        self._reset = self._reset or reset

    def on_answered(self, *, by_task: bool) -> None:
        self._answered = True
        response = self._answering.response
        if response is not None and not response.reuse:
            self._stopping = True
        if by_task:
            return
        if self._stopping or self._state.draining or self._outlet.unsent or self._intake.has_more:
            self._work.wake()  # the rest takes time, or should let others have theirs
        else:
            self._release()

    # OutletOwner

    def on_tail(self) -> None:
        assert self._nursery is not None
        self._send_watch.begin()
        self._nursery.start_soon(self._outlet.flush, name="http flush")

    def on_progress(self) -> None:
        self._send_watch.note_progress()

    def on_drained(self) -> None:
        self._send_watch.end()

    def on_lost(self) -> None:
        self.cut(CLIENT_GONE)

    def on_stalled(self) -> None:
        self.cut(CLIENT_STALLED, reset=True)

    # The task that runs handlers

    async def _serve_requests(self) -> None:
        try:
            await self._serve_each()
        finally:
            self._answering.cut()
            self._intake.hold()  # nobody is left who would see to another request
            if self._answering.pending:  # its first checkpoint ends it, and it sees to the rest
                await self._answering.run()  # noqa: ASYNC102 (as said)
        if not self._abandoned:
            await self._hang_up()

    async def _serve_each(self) -> None:
        while True:
            if self._answering.pending:
                await self._answering.run()
            elif self._answered:
                if not await self._go_on():
                    return
            elif self._rejection is not None:
                self._answer_rejection(self._rejection)
                return
            elif self._stopping and self._answering.request is None:
                return
            else:
                await self._work.wait()

    def _release(self) -> None:
        self._answered = False
        self._answering.clear()
        self._intake.release()

    async def _go_on(self) -> bool:
        """See the answer off; return whether another request may follow."""
        await self._outlet.wait_drained()
        if self._stopping or self._state.draining:
            self._answering.clear()
            return False
        self._release()
        if self._intake.phase is Phase.HELD:  # pipelined: give way, as a read would
            await trio.lowlevel.checkpoint()
        return True

    def _answer_rejection(self, rejection: Rejection) -> None:
        self._state.rejected[rejection.status] += 1
        _LOGGER.debug("Refused a request with %d: %s", rejection.status, rejection.reason)
        if isinstance(rejection, Http2Preface):
            return
        headers = [(b"content-type", b"application/json")] if rejection.body else []
        headers.append((b"content-length", b"%d" % len(rejection.body)))
        headers.append((b"connection", b"close"))
        head = self._state.heads.general("1.1", rejection.status, headers)
        self._outlet.write_nowait(head + rejection.body)

    def _say_goodbye(self) -> None:
        """Tell a TLS client that it has everything, once, unless it has not."""
        if self._tls is not None and not self._abandoned:
            self._outlet.send_raw_nowait(self._tls.close_notify())

    async def _hang_up(self) -> None:
        """Close so that what was sent arrives: a close with unread input would reset it."""
        self._say_goodbye()
        await self._outlet.wait_drained()
        unread = self._rejection is not None or self._intake.has_more
        if not unread or self._intake.ended or self._outlet.broken:
            return
        self._intake.discard()
        with contextlib.suppress(OSError):
            self._socket.shutdown(stdlib_socket.SHUT_WR)
        await trio.sleep_forever()  # the client's end, or the end of patience, cancels
