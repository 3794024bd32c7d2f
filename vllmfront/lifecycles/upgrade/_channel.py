"""Messages and descriptors between two generations of the program."""

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import attrs
import trio

from vllmfront.errors import VllmFrontError

_MAX_DESCRIPTORS = 250
"""The kernel passes 253 at once."""

_READ_BYTES = 65536
_MAX_MESSAGE_BYTES = 64 * 2**20
"""Far above what thousands of engines have to say about themselves."""

_ITEM_BYTES = array.array("i").itemsize


class ChannelBroken(VllmFrontError):
    """Raised when what came is no message of another generation."""


@attrs.frozen
class Message:
    """One message; whoever receives it owns the descriptors."""

    fields: Mapping[str, Any]
    descriptors: Sequence[int] = ()

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.descriptors:
            os.close(fd)


def send_nowait(
    sock: socket.socket, fields: Mapping[str, Any], descriptors: Sequence[int] = ()
) -> bytes:
    """Send a message as far as it fits into a fresh line; return the rest, for ``send_rest``.

    So it is there before the process that will read it.
    """
    data, rights = _form(fields, descriptors)
    return data[sock.sendmsg([data], rights, socket.MSG_DONTWAIT) :]


_Ancillary = list[tuple[int, int, "array.array[int]"]]


def _form(fields: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[bytes, _Ancillary]:
    data = json.dumps({**fields, "descriptors": len(descriptors)}).encode() + b"\n"
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    return data, [rights] if descriptors else []


class Channel:
    """One end of the line between two generations: it ends when the other one does."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = trio.socket.from_stdlib_socket(sock)
        self._rest = b""
        self._descriptors: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, and close descriptors of messages that nobody has received."""
        self._socket.close()
        Message({}, self._descriptors).close()
        self._descriptors = []

    async def send(self, fields: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message, with duplicates of *descriptors*.

        Raises:
            trio.BrokenResourceError: The other end is gone.
        """
        data, rights = _form(fields, descriptors)
        try:
            sent = await self._socket.sendmsg([data], rights)
        except OSError as error:
            raise _broken() from error
        await self.send_rest(data[sent:])

    async def send_rest(self, data: bytes) -> None:
        """Send what is left of a message.

        Raises:
            trio.BrokenResourceError: The other end is gone.
        """
        try:
            while data:
                data = data[await self._socket.send(data) :]
        except OSError as error:
            raise _broken() from error

    async def receive(self) -> Message | None:
        """Return the next message; None: the other generation is gone.

        Raises:
            ChannelBroken: What came is no message.
        """
        while b"\n" not in self._rest:
            if not await self._read():
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            fields = json.loads(line)
            count = fields.pop("descriptors")
            found, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ChannelBroken(f"not a message: {line[:200]!r}") from error
        if len(found) != count:
            Message({}, found).close()
            raise ChannelBroken(f"{len(found)} descriptors came with a message of {count}")
        return Message(fields, found)

    async def _read(self) -> bool:
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _ITEM_BYTES)
        try:
            data, ancillary, _, _ = await self._socket.recvmsg(
                _READ_BYTES, space, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return False
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(content) - len(content) % _ITEM_BYTES
                self._descriptors += array.array("i", content[:whole])
        self._rest += data
        if len(self._rest) > _MAX_MESSAGE_BYTES:
            raise ChannelBroken("a message has no end")
        return bool(data)


def _broken() -> trio.BrokenResourceError:
    return trio.BrokenResourceError("the other generation has hung up")
