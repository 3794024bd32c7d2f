"""What a trainer's process is told, and what it answers; a line of JSON each."""

import msgspec


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Bring one version of the weights to a server."""

    server: str
    key: str
    owner: str
    version: str
    pieces: int
    mode: str = "keep"
    style: str = "window"
    """``window`` of the client, or ``sync``: the whole in one call."""

    clear_cache: bool = True
    lease: float = 2.0
    """Seconds."""

    dies: str | None = None
    spoiled: bool = False
    gives_up: bool = False
    budget: float = 60.0
    """Seconds in which it has to be done, with all repetitions."""


class Window(msgspec.Struct, frozen=True):
    """When nothing may have reached an engine, in seconds since 1970."""

    begin: float
    end: float


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How it went."""

    updated: bool
    attempts: list[str]
    """What went wrong with each but the last."""

    windows: list[Window]


class News(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """That a trainer is about to be killed; the last that it says."""

    dying: str
    windows: list[Window]


Line = Done | News
