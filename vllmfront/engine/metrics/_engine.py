"""All that is counted about the engines of one client."""

from collections.abc import Callable, Mapping

from vllmfront.engine.metrics._causes import TerminalCause
from vllmfront.engine.metrics._families import load_snapshot, rank_families
from vllmfront.engine.metrics._rank import QuietRankMetrics, RankMetrics
from vllmfront.engine.metrics._snapshot import EngineLevels, MetricsSnapshot

DEFAULT_MAX_MODEL_LEN = 131072
"""Bounds the token histograms of an engine that does not tell its own limit."""


class EngineMetrics:
    """Counters by rank, and how requests end. Terminal causes and faults always count."""

    def __init__(
        self,
        *,
        enabled: bool = True,
        bounds: Mapping[str, tuple[float, ...]] | None = None,
    ) -> None:
        """Count from zero.

        Args:
            enabled: Whether to count more than terminal causes and faults.
            bounds: Bucket bounds by family, where they are not the reference's; the families
                are the keys of ``default_bounds``.
        """
        self.enabled = enabled
        self._bounds = dict(bounds or {})
        self._ranks: dict[int, RankMetrics] = {}
        self._causes = dict.fromkeys(TerminalCause, 0)
        self._malformed_messages = 0
        self._malformed_outputs = 0
        self._unknown_outputs = 0
        self._sink_failures = 0
        self.num_resent = 0
        self.num_continued = 0
        self._levels: Callable[[], EngineLevels] | None = None

    def watch(self, levels: Callable[[], EngineLevels]) -> None:
        """Ask *levels*, for each snapshot, how the engines stand."""
        self._levels = levels

    def rank(self, rank: int) -> RankMetrics | None:
        """Return the counters of *rank*, None before ``open_rank``."""
        return self._ranks.get(rank)

    def open_rank(self, rank: int, max_model_len: int | None) -> RankMetrics:
        """Return the counters of *rank*; they go on when the rank comes back."""
        metrics = self._ranks.get(rank)
        if metrics is None:
            kind = RankMetrics if self.enabled else QuietRankMetrics
            metrics = self._ranks[rank] = kind(
                max_model_len=max_model_len or DEFAULT_MAX_MODEL_LEN, bounds=self._bounds
            )
            self._ranks = dict(sorted(self._ranks.items()))
        return metrics

    def count_cause(self, cause: TerminalCause) -> None:
        """Count the end of one request, or of one that was refused before it began."""
        self._causes[cause] += 1

    def count_malformed_message(self) -> None:
        self._malformed_messages += 1

    def count_malformed_output(self) -> None:
        self._malformed_outputs += 1

    def count_unknown_output(self) -> None:
        """Count an output for a request that has ended already."""
        self._unknown_outputs += 1

    def count_sink_failure(self) -> None:
        self._sink_failures += 1

    def count_resend(self, *, continues: bool) -> None:
        """Count a request that is sent again because its engine was lost.

        *continues* says that it had delivered something, and goes on from there.
        """
        if continues:
            self.num_continued += 1
        else:
            self.num_resent += 1

    def snapshot(self) -> MetricsSnapshot:
        """Return everything counted so far; without families where counting is off."""
        return MetricsSnapshot(
            families=tuple(rank_families(self._ranks)) if self.enabled else (),
            ranks={number: load_snapshot(rank) for number, rank in self._ranks.items()},
            causes={cause.value: count for cause, count in self._causes.items()},
            malformed_messages=self._malformed_messages,
            malformed_outputs=self._malformed_outputs,
            unknown_outputs=self._unknown_outputs,
            sink_failures=self._sink_failures,
            resent_requests=self.num_resent,
            continued_requests=self.num_continued,
            levels=None if self._levels is None else self._levels(),
        )
