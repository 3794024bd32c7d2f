"""The chunked transfer coding, read strictly. Pure: bytes in, body out."""

import re

from vllmfront.api.http._rejection import body_broken, body_too_large, headers_too_large

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


class ChunkedBody:
    """Takes a chunked body out of a buffer, piece by piece.

    Any doubt about where the body ends is an error: a lenient reader behind a proxy that reads
    otherwise is how requests get smuggled.
    """

    def __init__(self, *, max_body_bytes: int, max_overhead_bytes: int) -> None:
        self._max_body = max_body_bytes
        self._overhead_left = max_overhead_bytes
        """What chunk extensions and trailers may still take; sizes are free."""

        self._body = bytearray()
        self._data_left = 0
        self._in_data = False
        self._in_trailers = False
        self.complete = False

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    def consume(self, buffer: bytearray) -> None:
        """Move what *buffer* holds of the body out of it; sets ``complete`` at its end.

        Raises:
            Rejection: The coding is broken, or a limit is passed.
        """
        position = 0
        while not self.complete:
            step = self._take_data if self._in_data else self._take_line
            taken = step(buffer, position)
            if taken == 0:
                break
            position += taken
        del buffer[:position]

    def _take_data(self, buffer: bytearray, position: int) -> int:
        """Take chunk data, and the line end behind it once the data is whole."""
        if self._data_left:
            piece = buffer[position : position + self._data_left]
            self._body += piece
            self._data_left -= len(piece)
            return len(piece)
        end = buffer[position : position + 2]
        if not b"\r\n".startswith(end):
            raise body_broken("chunk data is longer than its size says")
        if len(end) < 2:  # noqa: PLR2004  # a line end
            return 0
        self._in_data = False
        return 2

    def _take_line(self, buffer: bytearray, position: int) -> int:
        end = buffer.find(b"\r\n", position, position + self._overhead_left + 20)
        if end < 0:
            if len(buffer) - position > self._overhead_left + 18:
                raise headers_too_large("chunk extensions or trailers are too long")
            return 0
        line = bytes(buffer[position:end])
        if self._in_trailers:
            self._on_trailer(line)
        else:
            self._on_size(line)
        return end + 2 - position

    def _on_size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise body_broken("a chunk has no proper size")
        self._spend(len(line) - len(match[1]))
        size = int(match[1], 16)
        if size == 0:
            self._in_trailers = True
            return
        if len(self._body) + size > self._max_body:
            raise body_too_large(self._max_body)
        self._data_left = size
        self._in_data = True

    def _on_trailer(self, line: bytes) -> None:
        if not line:
            self.complete = True
        elif _TRAILER.fullmatch(line) is None:
            raise body_broken("a trailer is malformed")
        else:
            self._spend(len(line) + 2)

    def _spend(self, overhead: int) -> None:
        self._overhead_left -= overhead
        if self._overhead_left < 0:
            raise headers_too_large("chunk extensions and trailers are too long")
