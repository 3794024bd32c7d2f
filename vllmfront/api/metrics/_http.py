"""What the HTTP side counts, in plain Python: an observation costs well under a microsecond."""

from collections.abc import Callable

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

    server: Callable[[], HttpStatistics] | None = None
    """The server's own books, of what no handler has seen; None before there is a server."""

    def observe(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count one answered request; *seconds* passed until its head was queued."""
        key = (method, f"{status // 100}xx", handler)
        self.requests[key] = self.requests.get(key, 0) + 1
        durations = self.durations.get((method, handler))
        if durations is None:
            durations = self.durations[method, handler] = Histogram(COARSE_SECONDS)
        durations.observe(seconds)
        self.all_durations.observe(seconds)
