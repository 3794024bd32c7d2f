"""What all processes have counted, those that are dead included."""

from collections.abc import Callable, Mapping, Sequence

from vllmfront.api.metrics import PackedFamily, counted, merge
from vllmfront.engine.metrics import RankLoadSnapshot
from vllmfront.interprocess import Lines
from vllmfront.lifecycles.workers._messages import AskCounts, Counts, Load

_PATIENCE = 1.0
"""Seconds that a scrape waits for a worker; of one that is busier the last report is taken."""

MAIN = 0
"""The number of the main process among the reports."""

Newest = Callable[[int], int]
"""Tells which process an engine has told last how busy it is, by the engine's rank."""


class ServiceCounts:
    """The last report of each worker, and the sum of those that died.

    No counter that was ever shown falls: what was shown came through here.
    """

    def __init__(self) -> None:
        self._last: dict[int, Counts] = {}
        self._dead: list[PackedFamily] = []
        self._dead_loads: dict[int, Load] = {}

    def __repr__(self) -> str:
        return f"<ServiceCounts of {len(self._last)} workers>"

    def record(self, number: int, counts: Counts) -> None:
        """Take note of what worker *number* has counted since it began."""
        self._last[number] = counts

    def bury(self, number: int) -> None:
        """Keep what worker *number*, which is dead, had counted when it said so last."""
        last = self._last.pop(number, None)
        if last is None:
            return
        reports = [self._dead, counted(last.families)]
        self._dead = merge(reports, newest=lambda _: None)
        for rank, load in last.loads.items():
            before = self._dead_loads.get(rank)
            self._dead_loads[rank] = _growing(load if before is None else _add(before, load))

    async def ask(self, lines: Lines) -> None:
        """Ask all workers that are up; of one that does not answer the last report stays."""
        for number, said in (await lines.call_all(AskCounts(), Counts, seconds=_PATIENCE)).items():
            if isinstance(said, Counts):
                self.record(number, said)

    def families(self, own: Sequence[PackedFamily], newest: Newest) -> list[PackedFamily]:
        """Return the sum of all, with what main itself has counted."""
        numbers = [MAIN, *self._last]

        def newest_report(engine: str) -> int | None:
            number = newest(int(engine)) if engine.isdecimal() else MAIN
            return numbers.index(number) if number in numbers else None

        reports = [own, *(counts.families for counts in self._last.values()), self._dead]
        return merge(reports, newest=newest_report)

    def loads(
        self, own: Mapping[int, RankLoadSnapshot], newest: Newest
    ) -> dict[int, RankLoadSnapshot]:
        """Return the sum of all for the periodic line, by rank."""
        found: dict[int, RankLoadSnapshot] = {}
        for rank, mine in own.items():
            total = _load_of(mine)
            if rank in self._dead_loads:
                total = _add(total, self._dead_loads[rank])
            for number, counts in self._last.items():
                if (load := counts.loads.get(rank)) is not None:
                    total = _add(total, load, newer=newest(rank) == number)
            found[rank] = _snapshot_of(total)
        return found


def pack_loads(loads: Mapping[int, RankLoadSnapshot]) -> dict[int, Load]:
    """Bring loads into the form in which they are sent."""
    return {rank: _load_of(load) for rank, load in loads.items()}


def _load_of(load: RankLoadSnapshot) -> Load:
    return Load(
        load.running,
        load.waiting,
        load.kv_cache_usage,
        load.prompt_tokens_computed,
        load.generation_tokens,
        load.prefix_cache_queries,
        load.prefix_cache_hits,
    )


def _snapshot_of(load: Load) -> RankLoadSnapshot:
    return RankLoadSnapshot(
        running=load.running,
        waiting=load.waiting,
        kv_cache_usage=load.kv_cache_usage,
        prompt_tokens_computed=load.prompt_tokens_computed,
        generation_tokens=load.generation_tokens,
        prefix_cache_queries=load.prefix_cache_queries,
        prefix_cache_hits=load.prefix_cache_hits,
    )


def _growing(load: Load) -> Load:
    """Leave out what held for a moment."""
    return Load(
        0,
        0,
        0.0,
        load.prompt_tokens_computed,
        load.generation_tokens,
        load.prefix_cache_queries,
        load.prefix_cache_hits,
    )


def _add(one: Load, other: Load, *, newer: bool = False) -> Load:
    """Sum up what grows; what holds for the moment is that of *other* where it is *newer*."""
    present = other if newer else one
    return Load(
        present.running,
        present.waiting,
        present.kv_cache_usage,
        one.prompt_tokens_computed + other.prompt_tokens_computed,
        one.generation_tokens + other.generation_tokens,
        one.prefix_cache_queries + other.prefix_cache_queries,
        one.prefix_cache_hits + other.prefix_cache_hits,
    )
