"""What an engine client has to do with waves."""

from collections.abc import Callable, Mapping
from typing import Protocol

from vllmfront.engine.wire import EngineLoad

LoadObserver = Callable[[Mapping[int, EngineLoad]], None]
"""Told of loads by rank: those that have news, as often as there are some."""


class Waves(Protocol):
    """What a client tells, and asks, whoever coordinates its engines. Nothing here waits."""

    @property
    def wave(self) -> int:
        """The wave that requests carry. One that is over is no harm: the engine knows better."""

    @property
    def held(self) -> bool:
        """Whether no engine is woken at present."""

    def hold(self, *, held: bool) -> None:
        """Wake no engine from now on, or do so again.

        For whoever pauses engines: while they come to agree, a wake-up call would have some of
        them wait for the others for ever. Requests that were sent meanwhile are made up for.
        """

    def requested(self, rank: int) -> None:
        """Note that requests have just been sent to *rank*, and perhaps to others as well.

        Where the engines may be idle, they are woken.
        """

    def engines_are(self, version: str | None, data_parallel_size: int | None) -> None:
        """Note what the engines say about themselves."""

    def engine_changed(self, rank: int) -> None:
        """Note that *rank* was lost, or that a process of it has joined."""


class NoWaves:
    """For engines that need no company."""

    wave = 0

    def __init__(self) -> None:
        self.held = False

    def __repr__(self) -> str:
        return "<NoWaves>"

    def hold(self, *, held: bool) -> None:
        self.held = held

    def requested(self, rank: int) -> None:
        """Nobody is to be woken."""

    def engines_are(self, version: str | None, data_parallel_size: int | None) -> None:
        """They are what they are."""

    def engine_changed(self, rank: int) -> None:
        """The others go on."""
