"""Requests out of bytes. Pure: knows neither sockets nor time.

The head is collected here, within its limits, and given to httptools in one piece; the body is
framed here. So that parser never meets an upgrade, a CONNECT or a pipelined request with
its own ideas about what follows the head.
"""

import logging

from vllmfront.api.http._chunked import ChunkedBody
from vllmfront.api.http._config import HttpConfig
from vllmfront.api.http._message import ConnectionState, HttpRequest
from vllmfront.api.http._rejection import Rejection, headers_too_large, malformed
from vllmfront.api.http._request_head import PREFACE, HeadReader, Http2Preface, RequestHead

_LOGGER = logging.getLogger(__name__)

_HEAD_END = b"\r\n\r\n"


class RequestParser:
    """Cuts a connection's bytes into complete requests, one at a time, in order.

    Bytes of later requests wait in the buffer; whoever feeds bounds them with ``buffered``.
    """

    def __init__(
        self,
        config: HttpConfig,
        *,
        heads: HeadReader,
        scheme: str = "http",
        client: tuple[str, int] | None = None,
        server: tuple[str, int | None] | None = None,
        connection: ConnectionState | None = None,
    ) -> None:
        self._config = config
        self._heads = heads
        self._scheme = scheme
        self._client = client
        self._server = server
        self._connection = connection
        self._buffer = bytearray()
        self._searched = 0
        self._head: RequestHead | None = None
        self._length_left = 0
        self._chunks: ChunkedBody | None = None
        self._body = bytearray()
        self.wants_continue = False
        """The client waits for ``100 Continue``; whoever sends it resets this."""

        self.keep_alive = True
        """Whether the client would use the connection again, after the last request read."""

    @property
    def buffered(self) -> int:
        """Bytes that belong to no request yet."""
        return len(self._buffer)

    @property
    def in_head(self) -> bool:
        """Whether part of a head has arrived, but not all."""
        return self._head is None and bool(self._buffer)

    @property
    def in_body(self) -> bool:
        """Whether a head has arrived, but not all of its body."""
        return self._head is not None

    def take_whole(self, data: bytes) -> HttpRequest | None:
        """Return the request that *data* is, where nothing is buffered and its head is known.

        None: ``feed`` it.
        """
        if self._buffer or self._head is not None:
            return None
        end = data.find(_HEAD_END) + len(_HEAD_END)
        head = self._heads.known(data[:end])
        if head is None or head.chunked or len(data) != end + head.length:
            return None
        self.keep_alive = head.keep_alive
        return self._request(head, data[end:])

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_request(self) -> HttpRequest | None:
        """Return the next complete request, or None: more bytes are needed.

        Raises:
            Rejection: The request cannot be read; nothing behind it can either.
        """
        try:
            if self._head is None and not self._take_head():
                return None
            return self._take_body()
        except Rejection as rejection:
            if rejection.advice:
                _LOGGER.info("Refused a request: %s; %s", rejection.reason, rejection.advice)
            raise

    def _take_head(self) -> bool:
        buffer = self._buffer
        if not self._searched:
            while buffer.startswith(b"\r\n"):  # some clients end a body with a stray line end
                del buffer[:2]
        limit = self._config.max_head_bytes
        end = buffer.find(_HEAD_END, self._searched, limit)
        if end < 0:
            if buffer.startswith(PREFACE[:14]):
                raise Http2Preface
            if len(buffer) >= limit:
                raise self._too_long(bytes(buffer))
            line_end = buffer.find(b"\n")
            if line_end >= 0 and buffer[line_end - 1 : line_end] != b"\r":
                raise malformed("the request line ends without a carriage return")
            self._searched = max(0, len(buffer) - 3)
            return False
        self._searched = 0
        head = bytes(buffer[: end + 4])
        del buffer[: end + 4]
        self._begin(self._heads.read(head))
        return True

    def _begin(self, head: RequestHead) -> None:
        self._head = head
        self.keep_alive = head.keep_alive
        self.wants_continue = head.wants_continue
        self._length_left = head.length
        if head.chunked:
            self._chunks = ChunkedBody(
                max_body_bytes=self._config.max_body_bytes,
                max_overhead_bytes=self._config.max_head_bytes,
            )

    def _too_long(self, head: bytes) -> Rejection:
        if b"\r\n" not in head[: self._config.max_target_bytes]:
            return Rejection(414, "the request target is too long")
        return headers_too_large("the request head is too large")

    def _take_body(self) -> HttpRequest | None:
        if self._chunks is not None:
            self._chunks.consume(self._buffer)
            if not self._chunks.complete:
                return None
            body = self._chunks.body
            self._chunks = None
            return self._finish(body)
        left = self._length_left
        buffer = self._buffer
        if len(buffer) < left or self._body:
            piece = buffer[:left]
            del buffer[:left]
            self._body += piece
            self._length_left -= len(piece)
            if self._length_left:
                return None
            body = bytes(self._body)
            self._body = bytearray()
            return self._finish(body)
        body = bytes(buffer[:left])
        del buffer[:left]
        self._length_left = 0
        return self._finish(body)

    def _finish(self, body: bytes) -> HttpRequest:
        head = self._head
        assert head is not None
        self._head = None
        self.wants_continue = False
        return self._request(head, body)

    def _request(self, head: RequestHead, body: bytes) -> HttpRequest:
        return HttpRequest(
            method=head.method,
            path=head.path,
            raw_path=head.raw_path,
            query=head.query,
            headers=head.headers,
            by_name=head.by_name,
            body=body,
            http_version=head.version,
            scheme=self._scheme,
            client=self._client,
            server=self._server,
            connection=self._connection,
        )
