"""What the routing policies do to prefix caches and to balance, and what a choice costs.

Conversations of several turns, each about one of some long documents, go to ranks with prefix
caches of their own: the model that the engine stand-in uses. Time is simulated: a prompt token that
no cache has takes time to compute, a generated one takes a step. Reports come every 100 ms.

Run it as ``python -m benchmarks.bench_routing``.
"""

import heapq
import random
import statistics
import time
from collections import deque
from collections.abc import Callable

import attrs

from vllmfront.engine import EngineRequest, RoutingPolicy, SamplingParams
from vllmfront.engine.routing import RankLoad, Routing, make_routing
from vllmfront.simulator._prefix import PrefixCache

RANKS = 8
CONCURRENT = 512
MAX_BATCH = 256
BLOCK = 16
CACHE_BLOCKS = 8_000
"""Of one rank: less than what all documents need, and conversations come on top."""

DOCUMENTS = 200
DOCUMENT_TOKENS = 1024
TURN_TOKENS = 128
TURNS = 6
ANSWER_TOKENS = 100
"""On the average."""

STEP = 0.01
PAUSE = 0.3
"""Seconds, on the average, that a client reads before it goes on."""

PREFILL = 20e-6
"""Seconds for each prompt token that the cache lacks."""

REPORT_INTERVAL = 0.1
SECONDS = 20.0
WARM = 8.0
SAMPLING = SamplingParams(max_tokens=ANSWER_TOKENS)


@attrs.define
class Conversation:
    """A client that asks, reads, and asks on."""

    number: int
    rng: random.Random
    tokens: list[int] = attrs.field(factory=list)
    turns: int = 0
    name: str = ""

    def ask(self) -> EngineRequest:
        """Return the next request."""
        if self.turns == 0:
            document = self.rng.randrange(DOCUMENTS)
            self.tokens = [document * DOCUMENT_TOKENS + n for n in range(DOCUMENT_TOKENS)]
            self.name = f"{self.number}-{self.rng.random()}"
        self.turns = (self.turns + 1) % TURNS
        self.tokens = [*self.tokens, *(self.rng.randrange(10**6) for _ in range(TURN_TOKENS))]
        return EngineRequest(
            request_id="r",
            prompt_token_ids=self.tokens,
            sampling=SAMPLING,
            session_id=self.name,
        )


@attrs.define(eq=False)
class Rank:
    """One engine, as far as it matters here."""

    rank: int
    load: RankLoad = attrs.field(factory=RankLoad)
    cache: PrefixCache = attrs.field(factory=lambda: PrefixCache(BLOCK, CACHE_BLOCKS))
    running: int = 0
    waiting: deque[tuple[Conversation, EngineRequest]] = attrs.field(factory=deque)
    busy_until: float = 0.0
    """When it has computed all prompts that it has begun: it computes one at a time."""

    cache_tokens: int = BLOCK * CACHE_BLOCKS


@attrs.define
class Result:
    """Of one policy."""

    hits: int = 0
    prompt: int = 0
    spreads: list[float] = attrs.field(factory=list)
    first_token: list[float] = attrs.field(factory=list)


class Simulation:
    """Events in order of time."""

    def __init__(self, routing: Routing) -> None:
        self.now = 0.0
        self.result = Result()
        self._routing = routing
        self._ranks = [Rank(rank) for rank in range(RANKS)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def run(self) -> Result:
        """Simulate for the whole time."""
        for number in range(CONCURRENT):
            conversation = Conversation(number, random.Random(number))
            # Not all of them are at the beginning.
            for _ in range(number % TURNS):
                conversation.ask()
            self._at(number * 1e-3, lambda it=conversation: self._arrive(it))  # type: ignore[misc]
        for rank in self._ranks:
            self._at(REPORT_INTERVAL * (1 + rank.rank / RANKS), lambda it=rank: self._report(it))  # type: ignore[misc]
        self._at(WARM, self._sample)
        while self._events and self._events[0][0] < SECONDS:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self.result

    def _at(self, when: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def _arrive(self, conversation: Conversation) -> None:
        request = conversation.ask()
        rank = self._routing.choose(self._ranks, request)
        rank.load.send()
        self._routing.sent(rank, request)
        if rank.running < MAX_BATCH:
            self._begin(rank, conversation, request, self.now)
        else:
            rank.waiting.append((conversation, request))

    def _begin(
        self, rank: Rank, conversation: Conversation, request: EngineRequest, arrival: float
    ) -> None:
        rank.running += 1
        tokens = request.prompt_token_ids
        cached = rank.cache.cached_tokens(tokens, 0)
        rank.cache.store(tokens, 0)
        rank.busy_until = max(rank.busy_until, self.now) + (len(tokens) - cached) * PREFILL
        first = rank.busy_until + STEP
        if self.now >= WARM:
            self.result.hits += cached
            self.result.prompt += len(tokens)
            self.result.first_token.append(first - arrival)
        steps = conversation.rng.randrange(2 * ANSWER_TOKENS)
        self._at(first + steps * STEP, lambda: self._end(rank, conversation))

    def _end(self, rank: Rank, conversation: Conversation) -> None:
        rank.running -= 1
        rank.load.end()
        if rank.waiting:
            self._begin(rank, *rank.waiting.popleft(), self.now)
        pause = conversation.rng.expovariate(1 / PAUSE)
        self._at(self.now + pause, lambda: self._arrive(conversation))

    def _report(self, rank: Rank) -> None:
        rank.load.report(rank.running, len(rank.waiting))
        self._at(self.now + REPORT_INTERVAL, lambda: self._report(rank))

    def _sample(self) -> None:
        counts = [rank.running for rank in self._ranks]
        self.result.spreads.append((max(counts) - min(counts)) * RANKS / sum(counts))
        self._at(self.now + 0.037, self._sample)


def cost(routing: Routing, tokens: int) -> float:
    """Return microseconds for one choice, of a prompt of so many tokens."""
    ranks = [Rank(rank) for rank in range(RANKS)]
    requests = [
        EngineRequest(
            request_id="r", prompt_token_ids=list(range(n, n + tokens)), session_id=str(n)
        )
        for n in range(200)
    ]
    begin = time.process_time()
    for request in requests:
        routing.sent(routing.choose(ranks, request), request)
    return (time.process_time() - begin) / len(requests) * 1e6


def main() -> None:
    """Print a line for each policy."""
    print(f"{CONCURRENT} conversations over {RANKS} ranks")
    print("policy        hit rate   spread of running   first token   a choice of 1k, 16k tokens")
    for policy in RoutingPolicy:
        result = Simulation(make_routing(policy)).run()
        spreads = sorted(result.spreads)
        times = [cost(make_routing(policy), tokens) for tokens in (1024, 16384)]
        print(
            f"{policy.value:<14}{result.hits / result.prompt:7.1%}"
            f"{statistics.mean(spreads):10.1%} p99 {spreads[int(len(spreads) * 0.99)]:.1%}"
            f"{statistics.median(result.first_token) * 1e3:10.0f} ms"
            f"{times[0]:14.1f} us {times[1]:.1f} us"
        )


if __name__ == "__main__":
    main()
