"""Who is told of what becomes of engines."""

from collections.abc import Callable

from vllmfront.engine.client.membership._rank import EngineRank


class Observed:
    """Holds the observers of a membership; all are called at once, in the order they came in."""

    def __init__(self) -> None:
        self._loss_observers: list[Callable[[EngineRank], None]] = []
        self._hole_observers: list[Callable[[EngineRank], None]] = []
        self._greeting_observers: list[Callable[[EngineRank], None]] = []
        self._arrival_observers: list[Callable[[EngineRank], None]] = []
        self._change_observers: list[Callable[[], None]] = []

    def on_loss(self, observer: Callable[[EngineRank], None]) -> None:
        """Call *observer* with each engine that is lost, when all states say so already."""
        self._loss_observers.append(observer)

    def on_hole(self, observer: Callable[[EngineRank], None]) -> None:
        """Call *observer* with each engine of which an output was lost; it serves on."""
        self._hole_observers.append(observer)

    def on_arrival(self, observer: Callable[[EngineRank], None]) -> None:
        """Call *observer* with each engine of which there is a new process."""
        self._arrival_observers.append(observer)

    def on_greeting(self, observer: Callable[[EngineRank], None]) -> None:
        """Call *observer* with each engine whose new process says HELLO here."""
        self._greeting_observers.append(observer)

    def on_change(self, observer: Callable[[], None]) -> None:
        """Call *observer* after each change of any engine's state."""
        self._change_observers.append(observer)
