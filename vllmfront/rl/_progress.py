"""What a trainer may follow while an update goes on."""

import enum
from collections.abc import Callable

import attrs


class Phase(enum.StrEnum):
    """A step of an update that one server has done."""

    PAUSED = "paused"
    STARTED = "started"
    SENT = "sent"
    FINISHED = "finished"
    RESUMED = "resumed"
    ROLLED_BACK = "rolled back"


@attrs.frozen
class Progress:
    """One server has done one step."""

    server: str
    phase: Phase
    seconds: float
    """How long that step took there."""

    chunk: int | None = None
    """Of ``SENT``: the how-manieth call it was, from 1."""


OnProgress = Callable[[Progress], object]
"""Called in the task that drives the update, as soon as a server has answered."""


def ignore(_progress: Progress) -> None:
    """Follow nothing."""
