"""Wake-up calls that idle engines are owed for a request, until they say that they run. Pure."""

import math

import attrs

from vllmfront.engine.coordinator._rules import WaveState

REPEAT_AFTER = 1.0
"""Seconds without a word from the engines after which they are called again: a call may have met
engines that were just paused, or the moment in which an engine was not connected."""


@attrs.define
class WakeUps:
    """Decides when to call. Asked again after each change, and at ``due``."""

    _wanted: bool = False
    """Whether these engines need to be called at all."""

    _held: bool = False
    _owed: int | None = None
    """The wave of the newest request that the engines were not heard of since."""

    _joined: int | None = None
    """The wave of the newest request that was sent because it was running."""

    _due: float = math.inf

    @property
    def wanted(self) -> bool:
        return self._wanted

    @property
    def held(self) -> bool:
        return self._held

    @property
    def due(self) -> float:
        """When ``take`` has something to give, infinity for never."""
        return math.inf if self._held else self._due

    def set_wanted(self, *, wanted: bool) -> None:
        """Note whether the engines of these versions need to be called."""
        self._wanted = wanted
        if not wanted:
            self._settle()

    def hold(self, *, held: bool) -> None:
        """Call nobody from now on, or do so again; what was owed meanwhile is due at once."""
        self._held = held
        if not held and self._owed is not None:
            self._due = -math.inf

    def requested(self, state: WaveState) -> None:
        """Note that a request was sent; where the engines run by *state*, that is all it needs."""
        if not self._wanted:
            return
        if state.running:
            self._joined = state.wave
        else:
            self.owe(state)

    def owe(self, state: WaveState) -> None:
        """Note that the engines need to be called, by the word of somebody who knows."""
        self._owed = state.wave
        self._due = -math.inf

    def observed(self, state: WaveState) -> None:
        """Note what is known of the engines now: they run, that wave is over, or neither.

        Where a wave that was running is not any more, but is not over either, nobody knows what
        has become of requests that joined it.
        """
        if self._joined is not None and not state.running:
            if state.wave <= self._joined:
                self.owe(state)
            self._joined = None
        if self._owed is not None and (state.running or state.wave > self._owed):
            self._settle()

    def renew(self) -> None:
        """Note that some engine may have missed the last call."""
        if self._owed is not None:
            self._due = -math.inf

    def take(self, now: float) -> bool:
        """Return whether to call the engines now."""
        if self.due > now:
            return False
        self._due = now + REPEAT_AFTER
        return True

    def _settle(self) -> None:
        self._owed = None
        self._due = math.inf
