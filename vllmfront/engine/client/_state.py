"""Where a client and its engines stand, as levels that observers can wait for."""

import enum
from collections.abc import Callable

import trio

from vllmfront.errors import VllmFrontError


class EngineState(enum.Enum):
    """Of one engine, or of all engines of a client together."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


class StateLevel:
    """A client's present state. Not terminal: an engine that comes back makes it load again."""

    def __init__(self) -> None:
        self._value = EngineState.LOADING
        self._error: VllmFrontError | None = None
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<StateLevel {self._value.value}{f': {self._error}' if self._error else ''}>"

    @property
    def value(self) -> EngineState:
        return self._value

    @property
    def error(self) -> VllmFrontError | None:
        """Why the state is DEAD: the first cause, which later ones do not replace."""
        return self._error

    async def wait(self, predicate: Callable[[EngineState], bool]) -> EngineState:
        """Return the first state that satisfies *predicate*, which is asked at each change."""
        while not predicate(self._value):
            await self._changed.wait()
        return self._value

    def set(self, value: EngineState, error: VllmFrontError | None = None) -> None:
        if value is self._value:
            return
        self._value, self._error = value, error
        changed, self._changed = self._changed, trio.Event()
        changed.set()
