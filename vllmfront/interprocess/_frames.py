"""What is said on a line between two processes of one server, as bytes.

Frames of four bytes of length and a MessagePack array ``[kind, number, name, data]``.
"""

import enum
from typing import TypeVar

import msgspec

from vllmfront.errors import VllmFrontError

MOST_BYTES = 64 * 2**20
"""Of one frame, and of what waits to be sent: far above what processes have to say."""

RESERVED_BYTES = 2**20
"""As much of that is left to messages: calls and answers may not fill it."""

_LENGTH_BYTES = 4

R = TypeVar("R")


class LineBroken(VllmFrontError):
    """Raised when the process at the other end is gone, or makes no sense."""


class CallFailed(VllmFrontError):
    """Raised when the other process could not do what it was asked for; says why."""


class LineFull(CallFailed):
    """Raised when a call does not fit on the line: too much waits there, or the call is too long.

    The line is as good as before.
    """

    def __init__(self, message: str, *, too_long: bool) -> None:
        super().__init__(message)
        self.too_long = too_long
        """Whether it never fits."""


class FrameKind(enum.IntEnum):
    TELL = 0
    CALL = 1
    ANSWER = 2
    FAILURE = 3
    CANCEL = 4


class Frame(msgspec.Struct, array_like=True):
    kind: int
    number: int
    """Of the call, and of its answer."""

    name: str
    data: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def encode_frame(kind: FrameKind, number: int, name: str, value: object) -> bytes:
    """Return the bytes of a frame with *value*."""
    body = _encode(Frame(kind, number, name, msgspec.Raw(_encode(value))))
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def take_frame(buffer: bytearray) -> Frame | None:
    """Take the first frame out of *buffer*; None: it is not there yet.

    Raises:
        LineBroken: It is too long, or none.
    """
    if len(buffer) < _LENGTH_BYTES:
        return None
    end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "big")
    if end > MOST_BYTES:
        raise LineBroken(f"another process of ours announces a message of {end} bytes")
    if len(buffer) < end:
        return None
    body = bytes(buffer[_LENGTH_BYTES:end])
    del buffer[:end]
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise LineBroken(f"another process of ours makes no sense: {error}") from error


def answer_of(frame: Frame, answer: type[R]) -> R:
    """Return what a call was answered.

    Raises:
        CallFailed: With a failure, or with what is no *answer*.
    """
    if frame.kind == FrameKind.FAILURE:
        raise CallFailed(msgspec.msgpack.decode(frame.data, type=str))
    try:
        return msgspec.msgpack.decode(frame.data, type=answer)
    except msgspec.ValidationError as error:
        raise CallFailed(f"the answer to {frame.name} makes no sense: {error}") from error
