"""Requests out of bytes. Pure: knows neither sockets nor time.

The head is collected here, within its limits, and given to httptools in one piece; the body is
framed here. So the parser below never meets an upgrade, a CONNECT or a pipelined request with
its own ideas about what follows the head.
"""

import logging
import re
from urllib.parse import unquote_to_bytes

import httptools

from vllmfront.api.http._chunked import ChunkedBody
from vllmfront.api.http._config import HttpConfig
from vllmfront.api.http._message import ConnectionState, HttpRequest
from vllmfront.api.http._rejection import (
    Rejection,
    body_too_large,
    headers_too_large,
    malformed,
)

_LOGGER = logging.getLogger(__name__)

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE_FORM = re.compile(rb"(?i:https?)://[^/?#]+")
_HEAD_END = b"\r\n\r\n"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"


class Http2Preface(Rejection):
    """Raised when the client begins to speak HTTP/2; it is dropped without an answer."""

    def __init__(self) -> None:
        super().__init__(
            400,
            "HTTP/2 is not spoken here",
            advice="let the proxy in front, or the client, use HTTP/1.1",
        )


class _Head:
    """A request head on its way from httptools into a request."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))


class RequestParser:
    """Cuts a connection's bytes into complete requests, one at a time, in order.

    Bytes of later requests wait in the buffer; whoever feeds bounds them with ``buffered``.
    """

    def __init__(
        self,
        config: HttpConfig,
        *,
        scheme: str = "http",
        client: tuple[str, int] | None = None,
        server: tuple[str, int | None] | None = None,
        connection: ConnectionState | None = None,
    ) -> None:
        self._config = config
        self._scheme = scheme
        self._client = client
        self._server = server
        self._connection = connection
        self._buffer = bytearray()
        self._searched = 0
        self._head: tuple[str, bytes, str, list[tuple[bytes, bytes]]] | None = None
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
            if buffer.startswith(_PREFACE[:14]):
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
        self._read_head(head)
        return True

    def _too_long(self, head: bytes) -> Rejection:
        if b"\r\n" not in head[: self._config.max_target_bytes]:
            return Rejection(414, "the request target is too long")
        return headers_too_large("the request head is too large")

    def _read_head(self, head: bytes) -> None:
        line_end = head.find(b"\r\n")
        parts = head[:line_end].split(b" ")
        if len(parts) != 3:  # noqa: PLR2004  # method, target, version
            raise malformed("the request line has not three parts")
        method, target, version = parts
        if not method.isalpha() and _TOKEN.fullmatch(method) is None:
            raise malformed("the method is malformed")
        if version not in (b"HTTP/1.1", b"HTTP/1.0"):
            if head.startswith(_PREFACE):
                raise Http2Preface
            raise malformed("the HTTP version is not 1.0 or 1.1")
        if len(target) > self._config.max_target_bytes:
            raise Rejection(414, "the request target is too long")
        parsed = _parse_with_httptools(head, method)
        if len(parsed.headers) > self._config.max_headers:
            raise headers_too_large("too many headers")
        if method == b"CONNECT":
            raise Rejection(405, "CONNECT is not served")
        is_11 = version == b"HTTP/1.1"
        self._read_framing(parsed.headers, is_11=is_11)
        self._head = (method.decode("ascii"), target, "1.1" if is_11 else "1.0", parsed.headers)

    def _read_framing(self, headers: list[tuple[bytes, bytes]], *, is_11: bool) -> None:
        """Take from the headers what decides where this request ends, and the next begins."""
        connection = b""
        length: int | None = None
        codings: bytes | None = None
        expects = False
        hosts = 0
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                codings = value if codings is None else codings + b"," + value
            elif name == b"connection":
                connection += b"," + value.lower()
            elif name == b"host":
                hosts += 1
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
        if hosts > 1:
            raise malformed("more than one Host header")
        options = [part.strip() for part in connection.split(b",")]
        self.keep_alive = (is_11 or b"keep-alive" in options) and b"close" not in options
        if codings is not None:
            self._begin_chunks(codings, length, is_11=is_11)
        elif length is not None and length > self._config.max_body_bytes:
            raise body_too_large(self._config.max_body_bytes)
        else:
            self._length_left = length or 0
        has_body = self._chunks is not None or self._length_left > 0
        self.wants_continue = expects and is_11 and has_body

    def _begin_chunks(self, codings: bytes, length: int | None, *, is_11: bool) -> None:
        if length is not None:
            raise malformed("both Content-Length and Transfer-Encoding")
        if not is_11:
            raise malformed("Transfer-Encoding in HTTP/1.0")
        if codings.lower() != b"chunked":
            raise Rejection(501, "a transfer coding other than chunked")
        self._chunks = ChunkedBody(
            max_body_bytes=self._config.max_body_bytes,
            max_overhead_bytes=self._config.max_head_bytes,
        )

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
        assert self._head is not None
        method, target, version, headers = self._head
        self._head = None
        self.wants_continue = False
        raw_path, query = _split_target(target)
        path = (
            unquote_to_bytes(raw_path).decode("utf-8", "replace")
            if b"%" in raw_path
            else raw_path.decode("latin-1")
        )
        return HttpRequest(
            method=method,
            path=path,
            raw_path=raw_path,
            query=query,
            headers=headers,
            body=body,
            http_version=version,
            scheme=self._scheme,
            client=self._client,
            server=self._server,
            connection=self._connection,
        )


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    """Return path and query of a request target, in origin or absolute form."""
    if b"#" in target:
        target = target[: target.index(b"#")]
    if not target.startswith((b"/", b"*")):
        absolute = _ABSOLUTE_FORM.match(target)
        if absolute is None:
            raise malformed("the request target is not a path")
        target = target[absolute.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    path, _, query = target.partition(b"?")
    return path, query


def _parse_with_httptools(head: bytes, method: bytes) -> _Head:
    parsed = _Head()
    try:
        httptools.HttpRequestParser(parsed).feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # CONNECT, or an Upgrade header that we ignore; the head has been read
    except httptools.HttpParserInvalidMethodError:
        # Unknown to llhttp, which has a list. A token is a method all the same.
        return _parse_with_httptools(b"GET" + head[len(method) :], b"GET")
    except httptools.HttpParserError as error:
        raise malformed(str(error)) from error
    return parsed
