"""The load of all engines as they report it, and when frontends are told. Pure."""

import math
from collections.abc import Sequence

import attrs

from vllmfront.engine.wire import EngineLoad

CHANGE_INTERVAL = 0.1
"""Seconds between two publications while loads change."""

IDLE_INTERVAL = 5.0
"""Seconds between them while nothing changes: frontends that come later learn how things are."""

_IDLE = EngineLoad(0, 0, 0.0)


@attrs.define
class LoadTable:
    """Loads by engine index.

    Engines that step together report the same step one after the other. A table in the middle of
    that would show one engine as it is and another as it was, so what is published is how things
    stood when the last step was complete: when the first report of the next one came.
    """

    _loads: list[EngineLoad]
    _complete: Sequence[EngineLoad] | None = None
    _position: tuple[int, int] = (-1, -1)
    """Wave and step of the newest report."""

    _changed: bool = False
    _published: float = -math.inf

    @classmethod
    def of(cls, engines: int) -> "LoadTable":
        """Begin with *engines* idle ones."""
        return cls([_IDLE] * engines)

    def __len__(self) -> int:
        return len(self._loads)

    @property
    def loads(self) -> Sequence[EngineLoad]:
        """The newest of each engine."""
        return tuple(self._loads)

    def report(self, engine: int, load: EngineLoad, wave: int = 0, step: int = 0) -> bool:
        """Note what *engine* says about itself after *step* of *wave*.

        Returns:
            False where it is none of those that are counted.
        """
        if not 0 <= engine < len(self._loads):
            return False
        if (wave, step) > self._position:
            self._position = (wave, step)
            if self._changed:
                self._complete = self.loads
        self._loads[engine] = load
        self._changed = True
        return True

    def forget(self, engine: int) -> None:
        """Note that *engine* has left, and its requests with it."""
        if 0 <= engine < len(self._loads) and self._loads[engine] != _IDLE:
            self._loads[engine] = _IDLE
            self._complete = None
            self._changed = True
        # A new process counts from the beginning.
        self._position = (-1, -1)

    def resize(self, engines: int) -> None:
        """Count *engines* from now on; new ones are idle."""
        missing = engines - len(self._loads)
        self._loads = [*self._loads[:engines], *[_IDLE] * missing]
        self._complete = None
        self._changed = True

    @property
    def due(self) -> float:
        """When frontends are to be told."""
        return self._published + (CHANGE_INTERVAL if self._changed else IDLE_INTERVAL)

    def take(self, now: float) -> Sequence[EngineLoad]:
        """Return what to tell them at *now*."""
        self._published = now
        complete, self._complete = self._complete, None
        if complete is not None:
            return complete  # and the newest ones next time
        self._changed = False
        return self.loads
