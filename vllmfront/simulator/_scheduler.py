"""Which requests run, for how long a step lasts, and what each of them says at its end.

Pure: the caller brings the time, in seconds of one monotonic clock. A step is in flight from
``begin`` until ``due``; ``finish`` then returns its outputs. Between steps the caller may add
and abort requests and change the pause state, as in a real engine, whose loop does one thing
at a time.
"""

import enum
from collections import Counter
from collections.abc import Iterable

import attrs

from vllmfront.engine import (
    PREEMPTED,
    QUEUED,
    SCHEDULED,
    EngineOutput,
    PrefillStats,
)
from vllmfront.simulator._config import SimulatorConfig
from vllmfront.simulator._messages import StepStats
from vllmfront.simulator._prefix import PrefixCache
from vllmfront.simulator._script import Act
from vllmfront.simulator._sequence import Sequence
from vllmfront.simulator._speaker import Speaker, closing_act
from vllmfront.simulator._tokens import TokenSource


class Pause(enum.Enum):
    """What a pause holds back."""

    NOTHING = enum.auto()
    NEW = enum.auto()  # running requests go on
    ALL = enum.auto()


@attrs.frozen
class Finished:
    """What one step brought."""

    rows: list[tuple[Sequence, list[int] | EngineOutput]]
    acts: list[tuple[Sequence, Act]]
    """Scripted acts of this step that are more than an output: raw frames, death."""


@attrs.define(eq=False)
class Scheduler:
    """The requests of one engine, waiting and running."""

    config: SimulatorConfig
    source: TokenSource
    cache: PrefixCache
    pause: Pause = Pause.NOTHING
    waiting: list[Sequence] = attrs.field(factory=list)
    running: list[Sequence] = attrs.field(factory=list)
    due: float | None = None
    """When the step in flight ends; None between steps."""

    _speaker: Speaker = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: Speaker(self.config, self.source), takes_self=True),
    )
    _stepping: list[Sequence] = attrs.field(factory=list)
    _queries: int = 0
    _hits: int = 0
    _prefills: int = 0
    _reset: bool = False

    @property
    def has_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def find(self, request_id: str) -> Sequence | None:
        """Return the unfinished request of that id, or None."""
        return next((s for s in (*self.running, *self.waiting) if s.request_id == request_id), None)

    def add(self, sequence: Sequence, now: float) -> None:
        if self.config.stats:
            sequence.events.append((QUEUED, now))
        self.waiting.append(sequence)

    def remove(self, request_ids: Iterable[str] | None = None) -> list[Sequence]:
        """End requests without an output, all of them for None; unknown ids are ignored."""
        ids = None if request_ids is None else set(request_ids)
        gone = [s for s in (*self.running, *self.waiting) if ids is None or s.request_id in ids]
        for queue in (self.running, self.waiting, self._stepping):
            queue[:] = [s for s in queue if s not in gone]
        return gone

    def reset_prefix_cache(self, now: float, *, preempt: bool) -> bool:
        """Forget cached blocks; False, and nothing forgotten, while running requests hold some.

        With *preempt* the running requests go back among the waiting ones, to be recomputed.
        """
        if self.running and not preempt:
            return False
        for sequence in self.running:
            sequence.computed = False
            if self.config.stats:
                sequence.events.append((PREEMPTED, now))
        self.waiting[:0] = self.running
        self.running.clear()
        self._stepping.clear()
        self.cache.clear()
        self._reset = True
        return True

    def holds_work(self) -> bool:
        """Tell whether a step in flight, or one that may begin at some time, is outstanding.

        A silent request counts: it keeps a pause in ``wait`` mode waiting, for ever if need be.
        """
        if self.due is not None:
            return True
        if self.pause is Pause.ALL:
            return False
        return bool(self.running or (self.waiting and self.pause is Pause.NOTHING))

    def wake_at(self, now: float) -> float | None:
        """Return when to look again: the step's end, or when a scripted act is due."""
        if self.due is not None:
            return self.due
        if self.pause is Pause.ALL:
            return None
        if self._may_admit():
            return now
        return min((s.not_before for s in self.running if not s.silent), default=None)

    def begin(self, now: float) -> bool:
        """Start a step if there is anything to do."""
        if self.due is not None or self.pause is Pause.ALL:
            return False
        duration = self.config.step_time + self._admit(now)
        self._stepping = [s for s in self.running if not s.silent and s.not_before <= now]
        if not self._stepping:
            return False
        self.due = now + duration
        return True

    def _may_admit(self) -> bool:
        return (
            self.pause is Pause.NOTHING
            and bool(self.waiting)
            and len(self.running) < self.config.max_batch
        )

    def _admit(self, now: float) -> float:
        """Let waiting requests run; return the seconds that their prompts take."""
        if not self._may_admit():
            return 0.0
        if self.config.priority_scheduling:
            self.waiting.sort(key=lambda s: (s.request.priority, s.request.arrival_time, s.nth))
        free = self.config.max_batch - len(self.running)
        admitted, self.waiting = self.waiting[:free], self.waiting[free:]
        computed = sum(self._prefill(sequence, now) for sequence in admitted)
        self.running += admitted
        return computed * self.config.prefill_time_per_token

    def _prefill(self, sequence: Sequence, now: float) -> int:
        """Compute a prompt; return how many tokens the cache lacked."""
        prompt = sequence.request.prompt_token_ids
        history = [*prompt, *sequence.output]
        cached = 0
        if self.config.prefix_caching and sequence.reads_prefix_cache:
            cached = self.cache.cached_tokens(history, sequence.salt)
            self._queries += len(history)
            self._hits += cached
            self._prefills += 1
        if self.config.prefix_caching:
            self.cache.store(history, sequence.salt)
        if self.config.stats:
            sequence.events.append((SCHEDULED, now))
        if not sequence.output:
            sequence.prefill_stats = PrefillStats(
                num_prompt_tokens=len(prompt),
                num_computed_tokens=len(prompt) - cached,
                num_cached_tokens=cached,
                num_local_cached_tokens=cached,
            )
        sequence.computed = True
        return len(history) - cached

    def finish(self, now: float) -> Finished:
        """End the step in flight and return what it brought; finished requests are gone."""
        self.due = None
        finished = Finished([], [])
        for sequence in self._stepping:
            self._speak(sequence, now, finished)
        ended = {
            id(sequence)
            for sequence, row in finished.rows
            if not isinstance(row, list) and row.finish_reason is not None
        }
        if ended:
            self.running = [s for s in self.running if id(s) not in ended]
        self._stepping = []
        return finished

    def _speak(self, sequence: Sequence, now: float, finished: Finished) -> None:
        act = None
        if sequence.acts is not None and not sequence.said:
            act = sequence.acts.popleft() if sequence.acts else closing_act(sequence)
            following = sequence.acts[0] if sequence.acts else None
            sequence.not_before = now + (following.after if following else 0.0)
            if act.raw is not None or act.die or act.vanish:
                finished.acts.append((sequence, act))
            sequence.silent = act.silence
            if act.silence or act.die or act.vanish:
                return
        elif sequence.acts and len(sequence.said) <= self.config.tokens_per_output:
            sequence.not_before = now + sequence.acts[0].after
        row = self._speaker.row(sequence, act)
        if row is not None:
            finished.rows.append((sequence, row))

    def levels(self) -> StepStats:
        """Return the gauges alone."""
        blocks = sum(-(-s.length // self.config.block_size) for s in self.running)
        return StepStats(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_cache_usage=min(1.0, blocks / self.config.num_gpu_blocks),
        )

    def take_stats(self) -> StepStats:
        """Return the gauges, and the counters since the last call."""
        stats = attrs.evolve(
            self.levels(),
            prefix_requests=self._prefills,
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            prefix_reset=self._reset,
            running_loras=_count_loras(self.running),
            waiting_loras=_count_loras(self.waiting),
        )
        self._prefills = self._queries = self._hits = 0
        self._reset = False
        return stats


def _count_loras(sequences: Iterable[Sequence]) -> dict[str, int]:
    return dict(Counter(s.request.lora.name for s in sequences if s.request.lora is not None))
