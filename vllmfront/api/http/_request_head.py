"""Request heads out of bytes. Pure: knows neither sockets nor time."""

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

import httptools
from msgspec import Struct

from vllmfront.api.http._config import HttpConfig
from vllmfront.api.http._message import Headers
from vllmfront.api.http._rejection import Rejection, body_too_large, headers_too_large, malformed

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE_FORM = re.compile(rb"(?i:https?)://[^/?#]+")

_MOST_KNOWN = 256
"""Heads that are remembered; a client repeats a handful, and all that differs is the length."""

_LONGEST_KNOWN = 2048
"""Bytes of a head that is remembered."""


class Http2Preface(Rejection):
    """Raised when the client begins to speak HTTP/2; it is dropped without an answer."""

    def __init__(self) -> None:
        super().__init__(
            400,
            "HTTP/2 is not spoken here",
            advice="let the proxy in front, or the client, use HTTP/1.1",
        )


class RequestHead(Struct, frozen=True, kw_only=True):
    """What a head says; requests whose heads are the same bytes share one."""

    method: str
    path: str
    """Percent-decoded, without the query."""

    raw_path: bytes
    query: bytes
    version: str
    """``1.1`` or ``1.0``."""

    headers: Headers
    """Names in lower case, in the order of arrival."""

    by_name: Mapping[bytes, bytes]
    """The first value of each header."""

    keep_alive: bool
    """Whether the client would use the connection again."""

    length: int
    """Bytes of the body, unless it is chunked."""

    chunked: bool
    wants_continue: bool
    """Whether the client waits for ``100 Continue`` before it sends the body."""


class HeadReader:
    """Reads heads within the limits of *config*, and remembers what repeats.

    On a connection that is kept a client sends the same head again and again.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._known: dict[bytes, RequestHead] = {}

    def known(self, head: bytes) -> RequestHead | None:
        """Return what *head* says if it was read before."""
        return self._known.get(head)

    def read(self, head: bytes) -> RequestHead:
        """Return what *head*, from the method to the empty line, says.

        Raises:
            Rejection: It cannot be read, or exceeds a limit.
        """
        known = self.known(head)
        if known is not None:
            return known
        read = self._read(head)
        if len(head) <= _LONGEST_KNOWN:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[head] = read
        return read

    def _read(self, head: bytes) -> RequestHead:
        line_end = head.find(b"\r\n")
        parts = head[:line_end].split(b" ")
        if len(parts) != 3:  # noqa: PLR2004  # method, target, version
            raise malformed("the request line has not three parts")
        method, target, version = parts
        if not method.isalpha() and _TOKEN.fullmatch(method) is None:
            raise malformed("the method is malformed")
        if version not in (b"HTTP/1.1", b"HTTP/1.0"):
            if head.startswith(PREFACE):
                raise Http2Preface
            raise malformed("the HTTP version is not 1.0 or 1.1")
        if len(target) > self._config.max_target_bytes:
            raise Rejection(414, "the request target is too long")
        headers = _parse_with_httptools(head, method).headers
        if len(headers) > self._config.max_headers:
            raise headers_too_large("too many headers")
        if method == b"CONNECT":
            raise Rejection(405, "CONNECT is not served")
        raw_path, query = _split_target(target)
        is_11 = version == b"HTTP/1.1"
        framing = self._framing(headers, is_11=is_11)
        return RequestHead(
            method=method.decode("ascii"),
            path=_decoded(raw_path),
            raw_path=raw_path,
            query=query,
            version="1.1" if is_11 else "1.0",
            headers=headers,
            by_name=dict(reversed(headers)),
            keep_alive=framing.keep_alive,
            length=framing.length,
            chunked=framing.chunked,
            wants_continue=framing.expects and is_11 and (framing.chunked or framing.length > 0),
        )

    def _framing(self, headers: Headers, *, is_11: bool) -> "_Framing":
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
        if codings is not None:
            _check_codings(codings, length, is_11=is_11)
        elif length is not None and length > self._config.max_body_bytes:
            raise body_too_large(self._config.max_body_bytes)
        options = [part.strip() for part in connection.split(b",")]
        return _Framing(
            keep_alive=(is_11 or b"keep-alive" in options) and b"close" not in options,
            length=length or 0,
            chunked=codings is not None,
            expects=expects,
        )


class _Framing(Struct, frozen=True, kw_only=True):
    keep_alive: bool
    length: int
    chunked: bool
    expects: bool


class _Headers:
    """What httptools reports while it reads a head."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))


def _check_codings(codings: bytes, length: int | None, *, is_11: bool) -> None:
    if length is not None:
        raise malformed("both Content-Length and Transfer-Encoding")
    if not is_11:
        raise malformed("Transfer-Encoding in HTTP/1.0")
    if codings.lower() != b"chunked":
        raise Rejection(501, "a transfer coding other than chunked")


def _decoded(raw_path: bytes) -> str:
    if b"%" in raw_path:
        return unquote_to_bytes(raw_path).decode("utf-8", "replace")
    return raw_path.decode("latin-1")


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


def _parse_with_httptools(head: bytes, method: bytes) -> _Headers:
    parsed = _Headers()
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
