"""How long operations take, and how many are under way, as the reference counts them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from vllmfront.engine.metrics import Histogram

SECONDS = (0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The reference's bounds."""

WEIGHT_OPERATIONS = ("init", "shutdown", "start", "start_draft", "update", "finish")
SLEEP_OPERATIONS = ("sleep", "wake", "release_kv_cache_memory")


class OperationTimes:
    """Of one kind of operations; read ``durations`` and ``in_flight`` by name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.durations: Mapping[str, Histogram] = {name: Histogram(SECONDS) for name in names}
        self._in_flight = dict.fromkeys(names, 0)

    @property
    def in_flight(self) -> Mapping[str, int]:
        """How many are under way."""
        return self._in_flight

    @contextmanager
    def record(self, name: str) -> Iterator[None]:
        """Count what the block does as one operation *name*, however it ends."""
        self._in_flight[name] += 1
        started = time.perf_counter()
        try:
            yield
        finally:
            self._in_flight[name] -= 1
            self.durations[name].observe(time.perf_counter() - started)
