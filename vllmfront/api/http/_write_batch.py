"""Writes of many connections, gathered while they are made and sent in one go."""

import logging
from typing import Protocol

_LOGGER = logging.getLogger(__name__)


class Sender(Protocol):
    """An outlet that holds bytes back."""

    def send_gathered(self) -> None:
        """Send them."""

    def drop(self) -> None:
        """Send nothing more."""


class WriteBatch:
    """Whether outlets gather what is written, and who has done so.

    One engine message makes an event for each of hundreds of clients. Work of two kinds in turn,
    ours and the kernel's, costs each of them its caches; and a client's process that is woken by
    every single send is woken for each anew. Whoever makes many events calls ``begin`` before and
    ``end`` after, without a pause in between: what is gathered waits for that.
    """

    __slots__ = ("_senders", "gathering")

    def __init__(self) -> None:
        self.gathering = False
        self._senders: list[Sender] = []

    def __repr__(self) -> str:
        return f"<WriteBatch gathering={self.gathering} senders={len(self._senders)}>"

    def begin(self) -> None:
        """Gather what is written from now on."""
        self.gathering = True

    def add(self, sender: Sender) -> None:
        """Have *sender* called at the end; once for each time it begins to hold bytes back."""
        self._senders.append(sender)

    def end(self) -> None:
        """Send what was gathered, in the order in which it came; later writes go out at once."""
        self.gathering = False
        senders, self._senders = self._senders, []
        for sender in senders:
            try:
                sender.send_gathered()
            except Exception:  # the others must not suffer for it
                _LOGGER.exception("Sending to an HTTP client failed")
                sender.drop()
