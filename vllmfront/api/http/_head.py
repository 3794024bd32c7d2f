"""Response heads as bytes."""

import time
from email.utils import formatdate
from http import HTTPStatus

from vllmfront.api.http._message import Headers

# What the standard library calls these depends on its version.
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {
    413: "Payload Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Entity",
}
_STATUS_LINES = {
    (version, status): f"HTTP/{version} {status} {phrase}\r\n".encode()
    for version in ("1.0", "1.1")
    for status, phrase in _PHRASES.items()
}


def _status_line(version: str, status: int) -> bytes:
    return _STATUS_LINES.get((version, status)) or f"HTTP/{version} {status} \r\n".encode()


def has_no_body(status: int) -> bool:
    """Whether *status* forbids a body, and so the headers that would frame one."""
    return status in (204, 304) or status < 200  # noqa: PLR2004  # informational


class HeadEncoder:
    """Builds response heads, and remembers what repeats: the date and common beginnings."""

    def __init__(self) -> None:
        self._second = 0
        self._date = b""
        self._beginnings: dict[tuple[int, bytes], bytes] = {}
        """By status and content type, bounded below."""

        self._streamed: dict[tuple[int, tuple[tuple[bytes, bytes], ...]], bytes] = {}
        """Chunked, by status and headers, bounded below."""

        self._general: dict[tuple[str, int, tuple[tuple[bytes, bytes], ...]], bytes] = {}
        """Heads of exactly these headers, without the date; bounded below."""

    def whole(self, status: int, content_type: bytes, length: int) -> bytes:
        """The head of an HTTP/1.1 response that keeps its connection; the hot case."""
        beginning = self._beginnings.get((status, content_type))
        if beginning is None:
            beginning = _status_line("1.1", status)
            if content_type:
                beginning += b"content-type: %b\r\n" % content_type
            beginning += b"content-length: "
            if len(self._beginnings) < _MAX_BEGINNINGS:
                self._beginnings[status, content_type] = beginning
        return b"%b%d\r\n%b" % (beginning, length, self._end())

    def streamed(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes | None:
        """The head of a chunked HTTP/1.1 response that keeps its connection.

        None where *headers* frame the body themselves.

        Raises:
            ValueError: A header would break out of its line.
        """
        key = (status, headers)
        beginning = self._streamed.get(key)
        if beginning is None:
            if any(name.lower() == b"content-length" for name, _ in headers):
                return None
            lines = b"".join(map(_header_line, (*headers, (b"transfer-encoding", b"chunked"))))
            beginning = _status_line("1.1", status) + lines
            if len(self._streamed) >= _MAX_BEGINNINGS:
                self._streamed.clear()
            self._streamed[key] = beginning
        return beginning + self._end()

    def general(self, version: str, status: int, headers: Headers) -> bytes:
        """A head of exactly *headers* and the date.

        Raises:
            ValueError: A header would break out of its line.
        """
        key = (version, status, tuple(headers))
        beginning = self._general.get(key)
        if beginning is None:
            beginning = _status_line(version, status) + b"".join(map(_header_line, headers))
            if len(self._general) >= _MAX_BEGINNINGS:  # of ids and lengths, which do not repeat
                self._general.clear()
            self._general[key] = beginning
        return beginning + self._end()

    def _end(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = f"date: {formatdate(second, usegmt=True)}\r\n\r\n".encode()
        return self._date


def _header_line(header: tuple[bytes, bytes]) -> bytes:
    line = b"%b: %b\r\n" % header
    if line.count(b"\n") != 1 or line.count(b"\r") != 1:
        raise ValueError("a response header holds a line end")
    return line


_MAX_BEGINNINGS = 256
