"""A response on its way to an HTTP/1.x client."""

import time
from collections.abc import Callable

from vllmfront.api.http._head import has_no_body
from vllmfront.api.http._message import Headers
from vllmfront.api.http._outlet import Outlet
from vllmfront.api.http._state import ServerState

_LAST_CHUNK = b"0\r\n\r\n"

_CHUNK_HEADS = tuple(b"%X\r\n" % size for size in range(1024))
"""What leads a chunk, by its size, for those that streams of text consist of."""


class Response:
    """The ``ResponseWriter`` of one request on a connection of ours.

    It serves its own request only: once that has ended, later calls do nothing, so that a
    producer which is late cannot write into the next response.
    """

    __slots__ = (
        "_chunked",
        "_detached",
        "_extra_headers",
        "_flowing",
        "_head_only",
        "_held_head",
        "_length_left",
        "_on_overflow",
        "_outlet",
        "_state",
        "_version",
        "finished",
        "head_time",
        "reuse",
        "started",
        "status",
    )

    def __init__(
        self,
        outlet: Outlet,
        state: ServerState,
        *,
        version: str,
        head_only: bool,
        reuse: bool,
        on_overflow: Callable[[], None],
    ) -> None:
        self._outlet = outlet
        self._state = state
        self._version = version
        self._head_only = head_only
        self._on_overflow = on_overflow
        self._chunked = False
        self._detached = False
        self._flowing = False
        """Whether what comes next is a chunk and nothing else, until ``finished``."""

        self._length_left: int | None = None
        self._held_head = b""
        """Goes out with the next bytes."""

        self._extra_headers: list[tuple[bytes, bytes]] = []
        self.reuse = reuse
        """Whether the connection may carry another request after this response."""

        self.started = False
        self.finished = False
        self.status = 0
        self.head_time = 0.0

    def add_headers(self, headers: Headers) -> None:
        self._extra_headers.extend(headers)

    @property
    def congested(self) -> bool:
        return self._outlet.unsent > 0

    @property
    def close_delimited(self) -> bool:
        """Whether only the end of the connection tells the client where the body ends."""
        return self.started and not self._chunked and self._length_left is None

    def on_drained(self, callback: Callable[[], None] | None) -> None:
        if not self.finished:
            self._outlet.drained_callback = callback

    def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        if self._detached:
            return
        self._check_fresh()
        extra = self._extra_headers
        plain = not headers and not extra and not has_no_body(status)
        if plain and self.reuse and self._version == "1.1":
            head = self._state.heads.whole(status, content_type, len(body))
        else:
            lines = [(b"content-type", content_type)] if content_type else []
            lines += headers
            lines += extra
            if not has_no_body(status):
                lines.append((b"content-length", b"%d" % len(body)))
            head = self._general_head(status, lines)
        self._begin(status)
        self._length_left = 0
        self._end()
        self._outlet.write_nowait(head if self._head_only or has_no_body(status) else head + body)

    def start(self, status: int, headers: Headers, *, hold: bool = False) -> None:
        if self._detached:
            return
        self._check_fresh()
        head = None
        if self.reuse and self._version == "1.1" and type(headers) is tuple:
            head = self._usual_head(status, headers)
        if head is None:
            head = self._framed_head(status, [*headers, *self._extra_headers])
        self._begin(status)
        if hold:
            self._held_head = head
        else:
            self._outlet.write_nowait(head)
            self._note_head_sent()

    def flush(self) -> None:
        held, self._held_head = self._held_head, b""
        if held and not self.finished:
            self._outlet.write_nowait(held)
            self._note_head_sent()

    def _note_head_sent(self) -> None:
        self._flowing = self._chunked and not self._head_only

    def _check_fresh(self) -> None:
        if self.started:
            raise RuntimeError("the response has been started already")
        if self._state.announcing_close:
            self.reuse = False

    def _begin(self, status: int) -> None:
        self.started = True
        self.status = status
        self.head_time = time.perf_counter()

    def _usual_head(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes | None:
        """Return the head that nearly all streams have; None: theirs is another."""
        if self._extra_headers or has_no_body(status):
            return None
        head = self._state.heads.streamed(status, headers)
        self._chunked = head is not None
        return head

    def _framed_head(self, status: int, lines: list[tuple[bytes, bytes]]) -> bytes:
        if has_no_body(status):
            self._head_only = True
            self._length_left = 0
        else:
            self._choose_framing(lines)
        return self._general_head(status, lines)

    def _choose_framing(self, lines: list[tuple[bytes, bytes]]) -> None:
        """Decide how the client learns where a streamed body ends; may add to *lines*."""
        for name, value in lines:
            if name.lower() == b"content-length":
                self._length_left = int(value)
                return
        if self._version == "1.1":
            self._chunked = True
            lines.append((b"transfer-encoding", b"chunked"))
        else:
            self.reuse = False

    def _general_head(self, status: int, lines: list[tuple[bytes, bytes]]) -> bytes:
        if not self.reuse and self._version == "1.1":
            lines.append((b"connection", b"close"))
        elif self.reuse and self._version == "1.0":
            lines.append((b"connection", b"keep-alive"))
        return self._state.heads.general(self._version, status, lines)

    def write(self, data: bytes) -> None:
        if not self._may_write(data):
            return
        if self._chunked:
            data = b"%X\r\n%b\r\n" % (len(data), data)
        elif self._length_left is not None:
            self._length_left -= len(data)
            if self._length_left < 0:
                raise RuntimeError("the body is longer than its Content-Length")
        if self._held_head:
            data = self._held_head + data
            self._held_head = b""
            self._note_head_sent()
        self._outlet.write_nowait(data)
        if self._outlet.unsent > self._state.config.max_unsent_bytes:
            self._on_overflow()

    def offer(self, head: bytes, middle: bytes, tail: bytes) -> bool:
        outlet = self._outlet
        if outlet.unsent or self.finished:
            return False
        size = len(head) + len(middle) + len(tail)
        if self._flowing and size < len(_CHUNK_HEADS):
            outlet.write_nowait(b"".join((_CHUNK_HEADS[size], head, middle, tail, b"\r\n")))
        else:
            self.write(head + middle + tail)
        return True

    def _may_write(self, data: bytes) -> bool:
        if self.finished or not data:
            return False
        if not self.started:
            raise RuntimeError("the response has not been started")
        return not self._head_only

    def finish(self, last: bytes = b"") -> None:
        if self.finished:
            return
        if not self.started:
            raise RuntimeError("the response has not been started")
        if self._chunked and not self._head_only:
            if last:
                last = b"%X\r\n%b\r\n" % (len(last), last)
            self._end()
            self._outlet.write_nowait(self._held_head + last + _LAST_CHUNK)
            return
        self.write(last)
        self.flush()
        if self._length_left and not self._head_only:
            raise RuntimeError("the body is shorter than its Content-Length")
        self._end()

    def _end(self) -> None:
        self.finished = True
        self._outlet.drained_callback = None

    def detach(self) -> None:
        """Make all later calls do nothing: the request is over."""
        self._detached = True
        if not self.finished:
            self._end()
