"""One engine, as its client sees it."""

from vllmfront.engine.client._state import EngineState
from vllmfront.engine.handshake import identity_of
from vllmfront.engine.metrics import QuietRankMetrics, RankMetrics
from vllmfront.engine.routing import RankLoad
from vllmfront.engine.wire import Registration
from vllmfront.errors import EngineDied, VllmFrontError


class EngineRank:
    """The present state of one data-parallel rank, over all processes that ever served it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.identity = identity_of(rank)
        self.state = EngineState.LOADING
        self.error: VllmFrontError | None = None
        """Why it is DEAD."""

        self.silent = False
        """Whether it is DEAD only because its connection ended while it was loading."""

        self.registration: Registration | None = None
        """Of the newest process that joined; kept after its death."""

        # Replaced when it joins: only then the longest context is known, and with it the buckets.
        self.metrics: RankMetrics = QuietRankMetrics(max_model_len=1)
        self.load = RankLoad()
        self.incarnation = 0
        """Counts the processes that said HELLO, so that news of an old one can be told."""

        self.descriptor: int | None = None
        """Of its connection to the input socket, once it has registered."""

        self.inherited = False
        """Whether it registered with a client of another process, so that its connection to
        ours cannot be told from others."""

        self.last_heard = 0.0
        """When its last output came, by our monotonic clock, in seconds."""

    def __repr__(self) -> str:
        return f"<EngineRank {self.rank} {self.state.value}, {self.load!r}>"

    def death(self) -> VllmFrontError:
        """Return a fresh error of the same kind and words as ``error``.

        Each stream gets one of its own, so that no traceback grows by others' frames.
        """
        error = self.error
        if error is None:
            return EngineDied(f"engine {self.rank} is not connected")
        return error.twin()
