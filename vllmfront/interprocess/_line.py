"""A line between two processes of one server: typed messages, and calls that are answered.

Messages are ``msgspec`` structs, known at both ends by the name of their class.
"""

import logging
import socket
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import trio

from vllmfront.errors import VllmFrontError
from vllmfront.interprocess._frames import (
    MOST_BYTES,
    RESERVED_BYTES,
    CallFailed,
    Frame,
    FrameKind,
    LineBroken,
    LineFull,
    answer_of,
    encode_frame,
    take_frame,
)
from vllmfront.interprocess._handlers import Handlers

_LOGGER = logging.getLogger(__name__)

_READ_BYTES = 65536

DEFAULT_SECONDS = 5.0
"""For an answer, unless a caller says otherwise."""

_BOUNDED = frozenset({FrameKind.CALL, FrameKind.ANSWER})
"""What may be long, since users decide on it; the rest is ours, and short."""

R = TypeVar("R")


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
        self._answers: dict[int, trio.MemorySendChannel[Frame]] = {}
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
        self._put(FrameKind.TELL, 0, type(message).__name__, message)

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
            LineFull: It cannot be asked, now or ever.
            LineBroken: It is gone.
        """
        self._number += 1
        number = self._number
        send, receive = trio.open_memory_channel[Frame](1)  # there is one answer
        with send, receive:
            if self.gone.is_set():
                raise LineBroken("the other process is gone")
            self._answers[number] = send
            try:
                self._put(FrameKind.CALL, number, type(request).__name__, request)
                with trio.move_on_after(float("inf") if seconds is None else seconds):
                    frame = await receive.receive()
                    return answer_of(frame, answer)
            except trio.EndOfChannel:
                raise LineBroken("the other process is gone") from None
            finally:
                if self._answers.pop(number, None) is not None:
                    self._put(FrameKind.CANCEL, number, "", None)
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

    def _put(self, kind: FrameKind, number: int, name: str, value: object) -> None:
        if self.gone.is_set():
            return
        frame = encode_frame(kind, number, name, value)
        if kind in _BOUNDED:
            self._check_room(len(frame))
        self._out += frame
        if len(self._out) > MOST_BYTES:
            _LOGGER.error("another process of ours does not read what it is told; hanging up")
            self.close()
            return
        self._to_send.set()

    def _check_room(self, size: int) -> None:
        room = MOST_BYTES - RESERVED_BYTES
        if size > room:
            raise LineFull(f"{size} bytes are more than another process takes", too_long=True)
        if len(self._out) + size > room:
            raise LineFull(f"{len(self._out)} bytes are on their way already", too_long=False)

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
            while (frame := take_frame(buffer)) is not None:
                try:
                    self._take(frame, nursery)
                except msgspec.MsgspecError as error:
                    raise LineBroken(f"another process of ours makes no sense: {error}") from error

    def _take(self, frame: Frame, nursery: trio.Nursery) -> None:
        if frame.kind == FrameKind.TELL:
            self._handlers.told(frame)
        elif frame.kind == FrameKind.CALL:
            scope = self._answering[frame.number] = trio.CancelScope()
            nursery.start_soon(self._answer, frame, scope, name=f"answer {frame.name}")
        elif frame.kind == FrameKind.CANCEL:
            if (answering := self._answering.get(frame.number)) is not None:
                answering.cancel(reason="nobody waits for the answer any more")
        elif (waiting := self._answers.pop(frame.number, None)) is not None:
            waiting.send_nowait(frame)

    async def _answer(self, frame: Frame, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._answer_to_the_end(frame)
        finally:
            del self._answering[frame.number]

    async def _answer_to_the_end(self, frame: Frame) -> None:
        try:
            result = await self._handlers.called(frame)
        except VllmFrontError as error:
            self._put(FrameKind.FAILURE, frame.number, frame.name, str(error))
        except Exception as error:
            _LOGGER.exception("answering the call %s of another process failed", frame.name)
            self._put(FrameKind.FAILURE, frame.number, frame.name, f"internal error: {error!r}")
        else:
            try:
                self._put(FrameKind.ANSWER, frame.number, frame.name, result)
            except LineFull as error:
                self._put(FrameKind.FAILURE, frame.number, frame.name, f"the answer: {error}")

    def _note_end(self) -> None:
        self.gone.set()
        self._emptied.set()
        answers, self._answers = self._answers, {}
        for waiting in answers.values():
            waiting.close()


def line_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a line; each is for one process."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
