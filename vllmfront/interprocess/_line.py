"""A line between two processes of one server: typed messages, and calls that are answered.

On the wire: frames of four bytes of length and a MessagePack array ``[kind, number, name, data]``.
Messages are ``msgspec`` structs, known at both ends by the name of their class.
"""

import enum
import logging
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import trio

from vllmfront.errors import VllmFrontError

_LOGGER = logging.getLogger(__name__)

_LENGTH_BYTES = 4
_READ_BYTES = 65536
_MOST_BYTES = 64 * 2**20
"""Of one frame, and of what waits to be sent: far above what processes have to say."""

DEFAULT_SECONDS = 5.0
"""For an answer, unless a caller says otherwise."""

R = TypeVar("R")
M = TypeVar("M", bound=msgspec.Struct)


class LineBroken(VllmFrontError):
    """Raised when the process at the other end is gone, or makes no sense."""


class CallFailed(VllmFrontError):
    """Raised when the other process could not do what it was asked for; says why."""


class _Kind(enum.IntEnum):
    TELL = 0
    CALL = 1
    ANSWER = 2
    FAILURE = 3
    CANCEL = 4


class _Frame(msgspec.Struct, array_like=True):
    kind: int
    number: int
    """Of the call, and of its answer."""

    name: str
    data: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(_Frame).decode


class Handlers:
    """What is done at one end with what the other one says; may be added to at any time."""

    def __init__(self) -> None:
        self._tells: dict[str, tuple[type[Any], Callable[[Any], None]]] = {}
        self._calls: dict[str, tuple[type[Any], Callable[[Any], Awaitable[object]]]] = {}

    def __repr__(self) -> str:
        return f"<Handlers of {', '.join([*self._tells, *self._calls])}>"

    def hear(self, kind: type[M], handler: Callable[[M], None]) -> None:
        """Let *handler* take messages of that class; it does not block."""
        self._tells[kind.__name__] = kind, handler

    def answer(self, kind: type[M], handler: Callable[[M], Awaitable[object]]) -> None:
        """Let *handler* answer calls of that class, each in a task of its own.

        It returns a struct, or another value that MessagePack has; what it raises as
        ``VllmFrontError`` is raised at the caller as ``CallFailed``.
        """
        self._calls[kind.__name__] = kind, handler

    def told(self, frame: _Frame) -> None:
        """Do what a message is for; one that nobody knows costs a line in the log."""
        found = self._tells.get(frame.name)
        if found is None:
            _LOGGER.error("a message %r from another process of ours is not known", frame.name)
            return
        kind, handler = found
        handler(msgspec.msgpack.decode(frame.data, type=kind))

    async def called(self, frame: _Frame) -> object:
        """Do what a call is for; return its answer.

        Raises:
            CallFailed: Nobody knows such a call.
        """
        found = self._calls.get(frame.name)
        if found is None:
            raise CallFailed(f"nobody answers a call {frame.name!r}")
        kind, handler = found
        return await handler(msgspec.msgpack.decode(frame.data, type=kind))


class Line:
    """One end of a line; ``serve`` is its task, and returns when the other process is gone."""

    def __init__(self, sock: socket.socket, handlers: Handlers) -> None:
        """Speak over *sock*, which the line owns.

        Args:
            sock: One end of ``line_pair``.
            handlers: What is done with what comes.
        """
        sock.settimeout(0)
        self._socket = trio.socket.from_stdlib_socket(sock)
        self._handlers = handlers
        self._out = bytearray()
        self._to_send = trio.Event()
        self._emptied = trio.Event()
        self._number = 0
        self._answers: dict[int, trio.MemorySendChannel[_Frame]] = {}
        self._answering: dict[int, trio.CancelScope] = {}
        """Around what answers calls of the other process, by their numbers."""

        self.gone = trio.Event()
        """Set once nothing more will come."""

    def __repr__(self) -> str:
        return f"<Line {'gone' if self.gone.is_set() else f'{len(self._answers)} calls waiting'}>"

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
        """Hang up; calls that wait are told."""
        self._socket.close()
        self._note_end()

    def tell(self, message: msgspec.Struct) -> None:
        """Say something, in order with all else that is said; nothing where nobody hears it."""
        self._put(_Kind.TELL, 0, type(message).__name__, message)

    async def call(
        self,
        request: msgspec.Struct,
        answer: type[R],
        *,
        seconds: float | None = DEFAULT_SECONDS,
    ) -> R:
        """Ask for something; return the answer.

        Cancelled, or when the time is up, the other process is told, and what it does for the
        call is cancelled there.

        Args:
            request: What for.
            answer: The type of the answer.
            seconds: How long it may take; None: as long as the other process lives.

        Raises:
            CallFailed: The other process said why not, or nothing in time.
            LineBroken: It is gone.
        """
        self._number += 1
        number = self._number
        send, receive = trio.open_memory_channel[_Frame](1)  # there is one answer
        with send, receive:
            if self.gone.is_set():
                raise LineBroken("the other process is gone")
            self._answers[number] = send
            try:
                self._put(_Kind.CALL, number, type(request).__name__, request)
                with trio.move_on_after(float("inf") if seconds is None else seconds):
                    frame = await receive.receive()
                    return _answer_of(frame, answer)
            except trio.EndOfChannel:
                raise LineBroken("the other process is gone") from None
            finally:
                if self._answers.pop(number, None) is not None:
                    self._put(_Kind.CANCEL, number, "", None)
        raise CallFailed(f"no answer to {type(request).__name__} within {seconds:g} s")

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read, answer and send until the other process is gone, or until cancelled.

        Raises:
            LineBroken: What came is no message.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, name="line out")
                task_status.started()
                await self._read(nursery)
                nursery.cancel_scope.cancel(reason="the other process is gone")
        finally:
            self._note_end()

    async def flush(self) -> None:
        """Return once all that was said is with the kernel, or nobody hears it."""
        while self._out and not self.gone.is_set():
            await self._emptied.wait()

    def _put(self, kind: _Kind, number: int, name: str, value: object) -> None:
        if self.gone.is_set():
            return
        body = _encode(_Frame(kind, number, name, msgspec.Raw(_encode(value))))
        self._out += len(body).to_bytes(_LENGTH_BYTES, "big") + body
        if len(self._out) > _MOST_BYTES:
            _LOGGER.error("another process of ours does not read what it is told; hanging up")
            self.close()
            return
        self._to_send.set()

    async def _send(self) -> None:
        try:
            while True:
                await self._to_send.wait()
                self._to_send = trio.Event()
                while self._out:
                    sent = await self._socket.send(bytes(self._out[:_READ_BYTES]))
                    del self._out[:sent]
                self._emptied.set()
                self._emptied = trio.Event()
        except (OSError, trio.ClosedResourceError):
            self._out.clear()
            self._emptied.set()

    async def _read(self, nursery: trio.Nursery) -> None:
        buffer = bytearray()
        while True:
            try:
                data = await self._socket.recv(_READ_BYTES)
            except (OSError, trio.ClosedResourceError):
                return
            if not data:
                return
            buffer += data
            while (body := _cut(buffer)) is not None:
                try:
                    self._take(_decode_frame(body), nursery)
                except msgspec.MsgspecError as error:
                    raise LineBroken(f"another process of ours makes no sense: {error}") from error

    def _take(self, frame: _Frame, nursery: trio.Nursery) -> None:
        if frame.kind == _Kind.TELL:
            self._handlers.told(frame)
        elif frame.kind == _Kind.CALL:
            scope = self._answering[frame.number] = trio.CancelScope()
            nursery.start_soon(self._answer, frame, scope, name=f"answer {frame.name}")
        elif frame.kind == _Kind.CANCEL:
            if (answering := self._answering.get(frame.number)) is not None:
                answering.cancel(reason="nobody waits for the answer any more")
        elif (waiting := self._answers.pop(frame.number, None)) is not None:
            waiting.send_nowait(frame)

    async def _answer(self, frame: _Frame, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._answer_to_the_end(frame)
        finally:
            del self._answering[frame.number]

    async def _answer_to_the_end(self, frame: _Frame) -> None:
        try:
            result = await self._handlers.called(frame)
        except VllmFrontError as error:
            self._put(_Kind.FAILURE, frame.number, frame.name, str(error))
        except Exception as error:
            _LOGGER.exception("answering the call %s of another process failed", frame.name)
            self._put(_Kind.FAILURE, frame.number, frame.name, f"internal error: {error!r}")
        else:
            self._put(_Kind.ANSWER, frame.number, frame.name, result)

    def _note_end(self) -> None:
        self.gone.set()
        self._emptied.set()
        answers, self._answers = self._answers, {}
        for waiting in answers.values():
            waiting.close()


def line_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a line; each is for one process."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def _cut(buffer: bytearray) -> bytes | None:
    """Take the first frame out of *buffer*; None: it is not there yet.

    Raises:
        LineBroken: It is too long to be one.
    """
    if len(buffer) < _LENGTH_BYTES:
        return None
    end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "big")
    if end > _MOST_BYTES:
        raise LineBroken(f"another process of ours announces a message of {end} bytes")
    if len(buffer) < end:
        return None
    body = bytes(buffer[_LENGTH_BYTES:end])
    del buffer[:end]
    return body


def _answer_of(frame: _Frame, answer: type[R]) -> R:
    if frame.kind == _Kind.FAILURE:
        raise CallFailed(msgspec.msgpack.decode(frame.data, type=str))
    try:
        return msgspec.msgpack.decode(frame.data, type=answer)
    except msgspec.ValidationError as error:
        raise CallFailed(f"the answer to {frame.name} makes no sense: {error}") from error
