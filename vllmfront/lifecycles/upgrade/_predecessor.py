"""The running generation, as the one that is to follow it sees it."""

import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress

import trio

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles.upgrade._channel import Channel, Message
from vllmfront.lifecycles.upgrade._estate import Estate, decode_estate
from vllmfront.lifecycles.upgrade._messages import CHANNEL_VARIABLE, MessageKind
from vllmfront.supervisor import Shutdown

_LOGGER = logging.getLogger(__name__)

_LAST_WORD_BUDGET = 1.0
"""Seconds for telling the running generation why we give up."""


class Predecessor:
    """The generation before us; opened by ``open_predecessor``."""

    def __init__(self, channel: Channel, message: Message) -> None:
        """Take note of what comes down to us.

        Raises:
            ChannelBroken: It is in another form.
        """
        self.gone = trio.Event()
        """Set when its process has ended."""

        self.pid = int(message.fields.get("pid", 0))
        self.estate = decode_estate(message)
        """What would be ours if it died now."""

        self._channel = channel
        self._message = message
        self.followed = False
        """Whether it knows that we serve."""

    def __repr__(self) -> str:
        return f"<Predecessor pid={self.pid}{' gone' * self.gone.is_set()}>"

    async def take_over(self) -> Estate:
        """Say that we are prepared; return what is ours when the other one has stepped aside.

        Should it die instead, everything is ours at once.

        Raises:
            ChannelBroken: It says something else.
        """
        await self._say(MessageKind.PREPARED)
        message = None if self.gone.is_set() else await self._channel.receive()
        if message is None:
            self._note_end()
            return self.estate
        estate = decode_estate(message)
        self._message.close()
        return estate

    async def say_serving(self) -> None:
        """Say that clients are served here from now on."""
        self.followed = True
        await self._say(MessageKind.SERVING)

    async def serve(self, shutdown: Shutdown, alone: Callable[[], None]) -> None:
        """Tell it when we are told to stop, and call *alone* once it has gone; then return."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_on, shutdown)
            while not self.gone.is_set() and await self._channel.receive() is not None:
                pass
            self._note_end()
            alone()
            nursery.cancel_scope.cancel(reason="the generation before us is gone")

    async def _pass_on(self, shutdown: Shutdown) -> None:
        for event in (shutdown.requested, shutdown.hurried):
            await event.wait()
            await self._say(MessageKind.STOPPING)

    async def _say(self, kind: MessageKind) -> None:
        try:
            await self._channel.send({"kind": kind})
        except trio.BrokenResourceError:
            self._note_end()

    def _note_end(self) -> None:
        if not self.gone.is_set():
            self.gone.set()
            _LOGGER.info("process %d, which served before this one, is gone", self.pid)


@asynccontextmanager
async def open_predecessor(
    environ: MutableMapping[str, str],
) -> AsyncGenerator[Predecessor | None]:
    """Meet the generation that started us, if one did; why the block fails is told to it.

    Raises:
        ConfigurationError: The environment names a line that is none.
        ChannelBroken: What comes down to us is in another form.
    """
    channel = _take_channel(environ)
    if channel is None:
        yield None
        return
    with channel:
        message = await channel.receive()
        if message is None:
            raise ConfigurationError("the process that started this one to follow it is gone")
        predecessor: Predecessor | None = None
        try:
            predecessor = Predecessor(channel, message)
            yield predecessor
        except Exception as error:
            if predecessor is None or not predecessor.followed:
                with (
                    trio.move_on_after(_LAST_WORD_BUDGET, shield=True),
                    suppress(trio.BrokenResourceError),
                ):
                    await channel.send({"kind": MessageKind.FAILED, "reason": _reason(error)})
            raise


def _reason(error: BaseException) -> str:
    """Write down what went wrong and what caused it, in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_reason, error.exceptions))
    text = str(error) or type(error).__name__
    return text if error.__cause__ is None else f"{text}: {_reason(error.__cause__)}"


def _take_channel(environ: MutableMapping[str, str]) -> Channel | None:
    text = environ.pop(CHANNEL_VARIABLE, "")
    if not text:
        return None
    try:
        fd = int(text)
        os.set_inheritable(fd, False)  # noqa: FBT003 - takes no keyword
        sock = socket.socket(fileno=fd)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{CHANNEL_VARIABLE} is {text!r}, no open socket") from error
    return Channel(sock)
