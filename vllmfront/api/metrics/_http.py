"""What the HTTP side counts, in plain Python: an observation costs well under a microsecond."""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol

import attrs

from vllmfront.api.http import HttpStatistics
from vllmfront.api.metrics._inference import InferenceMetrics
from vllmfront.engine.metrics import Histogram

UNCOUNTED_PATHS = frozenset(
    {
        *("/health", "/live", "/load", "/metrics", "/ping", "/ready"),
        *("/server_info", "/supervisor", "/version"),
    }
)
"""Probes and scrapes would drown what users do."""

COARSE_SECONDS = (0.1, 0.5, 1.0)
FINE_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
)  # fmt: skip


_CLASSES = {status.value: f"{status.value // 100}xx" for status in HTTPStatus}
_MOST_WAITING = 256


class Operations(Protocol):
    """Orders to the engines of one kind, by name."""

    @property
    def durations(self) -> Mapping[str, Histogram]:
        """How long they took."""

    @property
    def in_flight(self) -> Mapping[str, int]:
        """How many are under way."""


@attrs.define
class HttpMetrics:
    """Requests by method, handler and status class; durations up to the response head."""

    requests: dict[tuple[str, str, str], int] = attrs.field(factory=dict)
    """``(method, status class, handler)`` to count; the handler of unknown paths is ``none``."""

    durations: dict[tuple[str, str], Histogram] = attrs.field(factory=dict)
    """``(method, handler)`` to durations."""

    all_durations: Histogram = attrs.field(factory=lambda: Histogram(FINE_SECONDS))

    inference: InferenceMetrics = attrs.field(factory=InferenceMetrics)
    """What becomes of the requests that engines are for."""

    operations: Mapping[str, Operations] = attrs.field(factory=dict)
    """What is ordered of the engines, by kind."""

    _waiting: list[tuple[str, str, float]] = attrs.field(factory=list)
    """Method, handler and duration of answers that are in no histogram yet."""

    server: Callable[[], HttpStatistics] | None = None
    """The server's own books, of what no handler has seen; None before there is a server."""

    def observe(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count one answered request; *seconds* passed until its head was queued."""
        key = (method, _CLASSES.get(status) or f"{status // 100}xx", handler)
        self.requests[key] = self.requests.get(key, 0) + 1
        waiting = self._waiting
        waiting.append((method, handler, seconds))
        if len(waiting) >= _MOST_WAITING:
            self.count_waiting()

    def count_waiting(self) -> None:
        """Put durations into the histograms, many at a time; due before these are read."""
        waiting, self._waiting = self._waiting, []
        self.all_durations.observe_all([seconds for _, _, seconds in waiting])
        by_handler: dict[tuple[str, str], list[float]] = {}
        for method, handler, seconds in waiting:
            by_handler.setdefault((method, handler), []).append(seconds)
        for key, durations in by_handler.items():
            if key not in self.durations:
                self.durations[key] = Histogram(COARSE_SECONDS)
            self.durations[key].observe_all(durations)
