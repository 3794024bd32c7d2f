"""The process of the next generation, as the running one starts it and speaks with it."""

import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio

from vllmfront.errors import VllmFrontError
from vllmfront.lifecycles.upgrade._channel import Channel, ChannelBroken, send_nowait
from vllmfront.lifecycles.upgrade._estate import Estate, encode_estate
from vllmfront.lifecycles.upgrade._messages import CHANNEL_VARIABLE, MessageKind

_NOT_FOR_SUCCESSORS = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID")
"""Variables of a service manager that are about the process that it has started itself."""

_EXIT_BUDGET = 1.0
"""Seconds from the end of the line to the end of the process, which tells more."""


class UpgradeFailed(VllmFrontError):
    """Raised when no new generation has come up; the running one goes on."""


def own_command() -> Sequence[str]:
    """Return what starts this program anew: what is installed by now, with the same arguments."""
    return [sys.executable, *sys.orig_argv[1:]]


@attrs.frozen
class Successor:
    """A new generation that is coming up, or has."""

    process: trio.Process
    channel: Channel
    unsent: bytes
    """Of the first message, where that is too long to be there before its reader."""

    @property
    def pid(self) -> int:
        return self.process.pid

    async def finish_estate(self) -> None:
        """Send what is left of the first message.

        Raises:
            UpgradeFailed: Nobody hears it any more.
        """
        try:
            await self.channel.send_rest(self.unsent)
        except trio.BrokenResourceError:
            raise await self._gone() from None

    async def let_take_over(self, estate: Estate) -> None:
        """Say that we have stepped aside, and what is left to the new generation.

        Raises:
            UpgradeFailed: Nobody hears it any more.
        """
        try:
            await self.channel.send(_fields(MessageKind.TAKE_OVER, estate), estate.descriptors)
        except trio.BrokenResourceError:
            raise await self._gone() from None

    async def expect(self, kind: MessageKind, budget: float, doing: str) -> None:
        """Return once the new generation sends a message of *kind*.

        Args:
            kind: What it should say next.
            budget: Seconds that it may take.
            doing: What it does meanwhile, for the error.

        Raises:
            UpgradeFailed: It says something else, nothing, or is gone.
        """
        with trio.move_on_after(budget):
            said = await self.listen()
            if said is None:
                raise await self._gone()
            if said[0] is not kind:
                raise UpgradeFailed(f"process {self.pid} gave up: {said[1] or said[0]}")
            return
        raise UpgradeFailed(f"process {self.pid} was silent for {budget:g} s, {doing}")

    async def listen(self) -> tuple[MessageKind, str] | None:
        """Return what the new generation says next, with its reason; None: it is gone.

        Raises:
            UpgradeFailed: It makes no sense.
        """
        try:
            message = await self.channel.receive()
            if message is None:
                return None
            return MessageKind(message.fields["kind"]), str(message.fields.get("reason", ""))
        except (ChannelBroken, ValueError, KeyError) as error:
            raise UpgradeFailed(f"process {self.pid} makes no sense: {error}") from error

    async def kill(self) -> None:
        """End the process now."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def wait_end(self) -> int | None:
        """Return the exit status of a process that has hung up; None: it takes its time."""
        with trio.move_on_after(_EXIT_BUDGET):
            return await self.process.wait()
        return None

    async def _gone(self) -> UpgradeFailed:
        status = await self.wait_end()
        if status is None:
            return UpgradeFailed(f"process {self.pid} has hung up; its log tells why")
        if status < 0:
            name = signal.Signals(-status).name
            return UpgradeFailed(f"process {self.pid} was killed by {name}")
        return UpgradeFailed(f"process {self.pid} ended with status {status}; its log tells why")


def _fields(kind: MessageKind, estate: Estate) -> Mapping[str, Any]:
    return {"kind": kind, "pid": os.getpid(), **encode_estate(estate)}


@asynccontextmanager
async def open_successor(
    command: Sequence[str], environ: Mapping[str, str], estate: Estate
) -> AsyncGenerator[Successor]:
    """Start a new generation; it outlives the block unless it is killed in it.

    It has *estate* from its first moment on, so it can go on should we die.

    Raises:
        UpgradeFailed: It cannot be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    unsent = send_nowait(ours, _fields(MessageKind.ESTATE, estate), estate.descriptors)
    with Channel(ours) as channel:
        try:
            process = await trio.lowlevel.open_process(
                command,
                pass_fds=[theirs.fileno()],
                env={
                    **{name: environ[name] for name in environ if name not in _NOT_FOR_SUCCESSORS},
                    CHANNEL_VARIABLE: str(theirs.fileno()),
                },
            )
        except OSError as error:
            raise UpgradeFailed(f"cannot run {command[0]}: {error.strerror}") from error
        finally:
            theirs.close()
        yield Successor(process, channel, unsent)
