"""Where engine requests wait for an engine: new ones, and those whose engine was lost."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile

from vllmfront.engine.client.requests._child import Child
from vllmfront.engine.client.requests._stream import RequestStream


class WaitingRoom:
    """Engine requests in the order in which they came, each for as long as it may wait.

    Those that are pinned to a rank have a queue of their own. All wait equally long, so that the
    first of a queue is the first whose time is up.
    """

    def __init__(self, patience: float) -> None:
        """Make an empty room in which everybody waits *patience* seconds at most."""
        self.patience = patience
        self._queues: dict[int | None, dict[Child, float]] = {}
        self._streams: Counter[RequestStream] = Counter()
        self._held = False
        self._observers: list[Callable[[], None]] = []

    def hold(self) -> None:
        """Let nobody's time run out until ``release``: what they wait for is no engine."""
        self._held = True

    def release(self, now: float) -> None:
        """Let the time of everybody begin anew."""
        self._held = False
        for queue in self._queues.values():
            for child in queue:
                queue[child] = now + self.patience

    def on_first(self, observer: Callable[[], None]) -> None:
        """Call *observer* whenever somebody enters the empty room."""
        self._observers.append(observer)

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def __iter__(self) -> Iterator[Child]:
        """Iterate over a copy, queue by queue."""
        return iter([child for queue in self._queues.values() for child in queue])

    @property
    def num_streams(self) -> int:
        """Streams that have somebody in here; one with several choices counts once."""
        return len(self._streams)

    @property
    def streams(self) -> list[RequestStream]:
        """Streams that have somebody in here, as a copy."""
        return list(self._streams)

    @property
    def pins(self) -> list[int | None]:
        """The ranks that somebody waits for; None stands for any."""
        return list(self._queues)

    def first(self, pin: int | None) -> Child | None:
        """Return who waits longest for rank *pin*, or for any."""
        return next(iter(self._queues.get(pin, ())), None)

    def enter(self, child: Child, now: float) -> None:
        """Let *child* wait behind all others."""
        assert child.stream is not None
        was_empty = not self._queues
        queue = self._queues.setdefault(child.request.data_parallel_rank, {})
        queue[child] = now + self.patience
        self._streams[child.stream] += 1
        if was_empty:
            for observer in self._observers:
                observer()

    def leave(self, child: Child) -> None:
        """Let *child*, who is in here, go."""
        assert child.stream is not None
        pin = child.request.data_parallel_rank
        queue = self._queues[pin]
        del queue[child]
        if not queue:
            del self._queues[pin]
        self._streams[child.stream] -= 1
        if not self._streams[child.stream]:
            del self._streams[child.stream]

    def next_expiry(self) -> float:
        """Return when the first of all has waited for too long."""
        if self._held:
            return math.inf
        return min(
            (next(iter(queue.values())) for queue in self._queues.values()), default=math.inf
        )

    def expired(self, now: float) -> list[Child]:
        """Return those who have waited for too long; they stay in here."""
        if self._held:
            return []
        return [
            child
            for queue in self._queues.values()
            for child, _ in takewhile(lambda entry: entry[1] <= now, queue.items())
        ]
