"""What an engine client has to do with waves."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from vllmfront.engine.wire import EngineLoad, Registration

_LOGGER = logging.getLogger(__name__)

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

    def engine_joined(self, rank: int, registration: Registration) -> None:
        """Note that a process of *rank* serves, and what it says about itself."""

    def engine_lost(self, rank: int) -> None:
        """Note that *rank* serves no more."""


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

    def engine_joined(self, rank: int, registration: Registration) -> None:
        """Complain where company is needed all the same."""
        engines = registration.data_parallel_size
        if engines is not None and engines > 1:
            _LOGGER.error(
                "Engine %d steps together with %d others, as a mixture of experts does, but they "
                "were told of no coordinator: requests may wait for ever. The model's config.json "
                "has to name its experts, see --hf-overrides",
                rank,
                engines - 1,
            )

    def engine_lost(self, rank: int) -> None:
        """The others go on as before."""
