"""What is done at one end of a line with what the other one says."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from vllmfront.interprocess._frames import CallFailed, Frame

_LOGGER = logging.getLogger(__name__)

M = TypeVar("M", bound=msgspec.Struct)


class Handlers:
    """By the class of what is said; may be added to at any time."""

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

    def told(self, frame: Frame) -> None:
        """Do what a message is for; one that nobody knows costs a line in the log."""
        found = self._tells.get(frame.name)
        if found is None:
            _LOGGER.error("a message %r from another process of ours is not known", frame.name)
            return
        kind, handler = found
        handler(msgspec.msgpack.decode(frame.data, type=kind))

    async def called(self, frame: Frame) -> object:
        """Do what a call is for; return its answer.

        Raises:
            CallFailed: Nobody knows such a call.
        """
        found = self._calls.get(frame.name)
        if found is None:
            raise CallFailed(f"nobody answers a call {frame.name!r}")
        kind, handler = found
        return await handler(msgspec.msgpack.decode(frame.data, type=kind))
