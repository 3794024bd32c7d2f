"""What a service manager is told: one datagram a message, to the address in ``NOTIFY_SOCKET``.

The protocol is systemd's (``sd_notify``), which others speak as well. Whether anybody listens
makes no difference to the program: nothing here waits for longer than a moment, nor raises.
"""

import logging
import socket
import time
from collections.abc import Callable, Mapping

import trio

_LOGGER = logging.getLogger(__name__)

_SEND_BUDGET = 1.0
"""Seconds for a service manager whose queue is full to read a message."""

_EXTENSION = 30.0
"""Seconds more that each message asks for while something takes its time."""

_EXTENSION_INTERVAL = 10.0
"""Seconds between such messages: two may be late or lost."""

_MICROSECONDS = 1_000_000


class Notifier:
    """The way to the service manager, if there is one."""

    def __init__(self, address: str | None) -> None:
        """Prepare the way.

        Args:
            address: A socket's path, or, behind an ``@``, an abstract name; None: nobody listens.
        """
        self.address = address
        self.ready = False
        """Whether READY was sent: the service counts as started."""

        self.silent = False
        """Whether nothing is sent, because another process speaks for the service."""

        self._complained = False
        if address is not None and address[:1] not in {"/", "@"}:
            self.address = None
            _LOGGER.warning("NOTIFY_SOCKET is %r, no Unix socket: nobody is notified", address)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Notifier":
        return cls(environ.get("NOTIFY_SOCKET") or None)

    def __repr__(self) -> str:
        state = f"{', ready' * self.ready}{', silent' * self.silent}"
        return f"<Notifier {self.address or 'without a listener'}{state}>"

    @property
    def enabled(self) -> bool:
        """Whether anybody listens."""
        return self.address is not None

    async def send(self, **assignments: object) -> None:
        """Send one message, such as ``READY=1, STATUS="serving"``; a failure is logged once."""
        await trio.lowlevel.checkpoint()
        if self.address is None or self.silent:
            return
        text = "".join(f"{name}={_one_line(value)}\n" for name, value in assignments.items())
        try:
            with trio.fail_after(_SEND_BUDGET):
                await _send_datagram(self.address, text.encode())
        except (OSError, trio.TooSlowError) as error:
            if not self._complained:
                self._complained = True
                _LOGGER.warning(
                    "the service manager does not learn how we are: cannot send to NOTIFY_SOCKET "
                    "%s: %s",
                    self.address,
                    getattr(error, "strerror", None) or "it does not read",
                )
        else:
            self.ready = self.ready or "READY" in assignments

    async def around_reload(self, reload: Callable[[], None]) -> None:
        """Run *reload*, told before and after as ``Type=notify-reload`` wants it."""
        if not self.ready:
            reload()
            return
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        await self.send(RELOADING=1, MONOTONIC_USEC=now)
        reload()
        await self.send(READY=1)


async def serve_extensions(notifier: Notifier) -> None:
    """Ask for more time again and again, before the last span is over, until cancelled."""
    while True:
        await notifier.send(EXTEND_TIMEOUT_USEC=microseconds(_EXTENSION))
        await trio.sleep(_EXTENSION_INTERVAL)


async def serve_watchdog(notifier: Notifier, interval: float) -> None:
    """Say that the event loop turns, twice in each *interval* of seconds; until cancelled."""
    while True:
        await notifier.send(WATCHDOG=1)
        await trio.sleep(interval / 2)


def watchdog_interval(environ: Mapping[str, str], pid: int) -> float | None:
    """Return the seconds after which silence counts as a failure; None: nobody watches *pid*."""
    text = environ.get("WATCHDOG_USEC", "")
    watched = environ.get("WATCHDOG_PID") or str(pid)
    if not text or watched != str(pid):
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        _LOGGER.warning("WATCHDOG_USEC is %r, no number of microseconds: no watchdog", text)
        return None
    return int(text) / _MICROSECONDS


def microseconds(seconds: float) -> int:
    return int(seconds * _MICROSECONDS)


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


async def _send_datagram(address: str, data: bytes) -> None:
    """Send *data* through a socket of its own: the other end may have been replaced."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0)
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        while True:
            try:
                sock.send(data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(sock)
            else:
                return
