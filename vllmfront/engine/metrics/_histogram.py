"""A histogram of plain numbers."""

from bisect import bisect_left

import attrs


@attrs.frozen
class HistogramValue:
    """A histogram at one moment."""

    bounds: tuple[float, ...]
    """Upper bounds, each inclusive; the last bucket has none."""

    counts: tuple[int, ...]
    """``[len(bounds) + 1]``, not cumulated."""

    sum: float

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)


class Histogram:
    """Counts values by bucket; owned by one task's thread, so without locks."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def snapshot(self) -> HistogramValue:
        return HistogramValue(self.bounds, tuple(self.counts), self.sum)
