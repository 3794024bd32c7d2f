"""One engine, as its client sees it."""

import time

import trio

from vllmfront.engine.client.membership._absence import Loading
from vllmfront.engine.client.membership._info import RankSnapshot
from vllmfront.engine.client.membership._state import RankEvent, RankState, next_rank_state
from vllmfront.engine.handshake import identity_of
from vllmfront.engine.metrics import QuietRankMetrics, RankMetrics
from vllmfront.engine.routing import RankLoad
from vllmfront.engine.wire import Registration
from vllmfront.errors import EngineDied, VllmFrontError

FIRST_WEIGHTS = "default"
"""What engines call the weights that they were started with."""


class EngineRank:
    """The present state of one data-parallel rank, over all processes that ever served it."""

    def __init__(self, rank: int, load: RankLoad | None = None) -> None:
        self.rank = rank
        self.identity = identity_of(rank)
        self.state = RankState.LOADING
        self.since = trio.current_time()
        """When the state became what it is, by Trio's clock."""

        self.error: VllmFrontError | None = None
        """Why it is not READY, where that is known."""

        self.broke_off = False
        """Whether it is DEAD only because its connection ended while it was loading."""

        self.cut_off = False
        """Whether it is DEAD only because its connection ended after it had joined."""

        self.orphans: list[str] = []
        """Internal ids of what it was working on when it was cut off."""

        self.registration: Registration | None = None
        """Of the newest process that joined; kept after its death."""

        # Replaced when it joins: only then the longest context is known, and with it the buckets.
        self.metrics: RankMetrics = QuietRankMetrics(max_model_len=1)
        self.load = RankLoad() if load is None else load
        self.incarnation = 0
        """Counts the processes that said HELLO, so that news of an old one can be told."""

        self.descriptor: int | None = None
        """Of its connection to the input socket, once it has registered."""

        self.unplaced = False
        """Whether it is connected to us, but registered with a client of another process: its
        connection cannot be told from others."""

        self.last_heard = 0.0
        """When its last output came, by our monotonic clock, in seconds."""

        self.signs_of_life = 0
        """Counts what it said that shows that it gets on with its work."""

        self.expected = False
        """Whether a process is known to have been started that has not said HELLO yet."""

        self.loading_since = self.since
        """When the newest process was started, as far as that is known, or said HELLO."""

        self.start_at: float | None = None
        """When its next process is to be started, if somebody said so."""

        self.load_seconds: float | None = None
        """How long the last one that joined took from there."""

        self.weight_version = FIRST_WEIGHTS
        """Label of the weights that made its last output."""

    def __repr__(self) -> str:
        return f"<EngineRank {self.rank} {self.state.value}, {self.load!r}>"

    @property
    def cache_tokens(self) -> int:
        """How many tokens its prefix cache holds; 0 where it did not say."""
        registration = self.registration
        if registration is None:
            return 0
        return (registration.num_gpu_blocks or 0) * (registration.block_size or 0)

    def enter(self, event: RankEvent) -> None:
        """Change to the state after *event*."""
        state, now = next_rank_state(self.state, event), trio.current_time()
        if state is not self.state:
            self.state, self.since = state, now
        if event is RankEvent.STARTED and not self.expected:
            self.loading_since, self.start_at = now, None
        elif event is RankEvent.JOINED:
            self.load_seconds = now - self.loading_since

    def death(self) -> VllmFrontError:
        """Return why it is lost, as an error of the caller's own."""
        if self.error is None:
            return EngineDied(f"engine {self.rank} is not connected")
        return self.error.twin()

    def loading(self, now: float) -> Loading:
        """Return what is known of when it will serve, by Trio's clock."""
        wait = max(0.0, (self.start_at or now) - now)
        return Loading(self.state, now - self.loading_since, self.load_seconds, wait)

    def snapshot(self) -> RankSnapshot:
        """Return how it stands now."""
        heard = self.last_heard
        return RankSnapshot(
            rank=self.rank,
            state=self.state,
            seconds_in_state=trio.current_time() - self.since,
            error=None if self.error is None else str(self.error),
            load_seconds=self.load_seconds,
            incarnation=self.incarnation,
            weight_version=self.weight_version,
            in_flight=self.load.in_flight,
            seconds_since_output=time.monotonic() - heard if heard else None,
        )
