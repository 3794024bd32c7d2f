"""Requests with the same prefix go to the same rank, which has it in its cache.

What ranks have is guessed from what was sent to them: blocks of tokens, each known by the hash of
everything up to its end, the longest unused forgotten first, as engines do it themselves.
"""

from collections.abc import Sequence

from vllmfront.engine._request import EngineRequest
from vllmfront.engine.routing._load import C, Candidate, least_loaded
from vllmfront.engine.routing._overload import not_overloaded
from vllmfront.engine.routing._rendezvous import rendezvous

BLOCK = 64
"""Tokens. Engines' blocks are shorter; a rank is not worth preferring for fewer."""

MAX_BLOCKS = 256
"""Of one prompt: its first 16,384 tokens decide. Hashing so many takes a fifth of a millisecond."""

MAX_TABLE = 2**17
"""Blocks that are kept of one rank, 8 million tokens, whatever it has itself."""

_UNKNOWN_CACHE = 2**20
"""Tokens that a rank is taken to have where it did not say."""


class PrefixRouting:
    """Prefers the rank that has the longest prefix of a prompt, unless it is overloaded."""

    def __init__(self, *, shared: bool = False) -> None:
        """Know of no prefix yet.

        Args:
            shared: Whether other clients route requests to the same ranks. A prefix that is new
                to us then goes where it would go if it came to them.
        """
        self._shared = shared
        self._tables: dict[int, PrefixTable] = {}
        # The prompt that was asked about last is sent next.
        self._last: tuple[EngineRequest, Sequence[int]] | None = None

    def __repr__(self) -> str:
        return f"<PrefixRouting of {sum(map(len, self._tables.values()))} blocks>"

    def choose(self, candidates: Sequence[C], request: EngineRequest) -> C:
        """Return which of *candidates*, of which there is one, gets *request*."""
        blocks = self._blocks_of(request)
        if not blocks:
            return least_loaded(candidates)
        fit = not_overloaded(candidates)
        depths = [self._depth(each, blocks) for each in fit]
        longest = max(depths)
        if longest:
            return least_loaded(
                [one for one, depth in zip(fit, depths, strict=True) if depth == longest]
            )
        return rendezvous(fit, blocks[0]) if self._shared else least_loaded(candidates)

    def sent(self, candidate: Candidate, request: EngineRequest) -> None:
        """Take note that *candidate* gets *request*, and will have its prefix."""
        blocks = self._blocks_of(request)
        if blocks:
            table = self._tables.get(candidate.rank)
            if table is None:
                tokens = candidate.cache_tokens or _UNKNOWN_CACHE
                table = PrefixTable(min(MAX_TABLE, max(MAX_BLOCKS, tokens // BLOCK)))
                self._tables[candidate.rank] = table
            table.add(blocks)

    def forget(self, rank: int) -> None:
        """Take note of a new process of *rank*, which has nothing."""
        self._tables.pop(rank, None)

    def _depth(self, candidate: Candidate, blocks: Sequence[int]) -> int:
        table = self._tables.get(candidate.rank)
        return 0 if table is None else table.depth(blocks)

    def _blocks_of(self, request: EngineRequest) -> Sequence[int]:
        if self._last is None or self._last[0] is not request:
            self._last = request, block_hashes(request)
        return self._last[1]


def block_hashes(request: EngineRequest) -> list[int]:
    """Return a hash for each whole block of a prompt, of everything up to its end."""
    tokens = request.prompt_token_ids
    chain = 0
    if request.cache_salt is not None or request.lora is not None:
        adapter = None if request.lora is None else request.lora.name
        chain = hash((request.cache_salt, adapter))
    hashes = []
    for end in range(BLOCK, min(len(tokens), BLOCK * MAX_BLOCKS) + 1, BLOCK):
        chain = hash((chain, tuple(tokens[end - BLOCK : end])))
        hashes.append(chain)
    return hashes


class PrefixTable:
    """The blocks that one rank is taken to have."""

    def __init__(self, capacity: int) -> None:
        """Keep as many as *capacity*, at least those of one prompt."""
        self._capacity = capacity
        self._blocks: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def depth(self, blocks: Sequence[int]) -> int:
        """Return how many *blocks* of a chain it has, from the first one on.

        Whoever has a block has those before it: they were used whenever it was.
        """
        known = self._blocks
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) // 2
            if blocks[middle] in known:
                low = middle + 1
            else:
                high = middle
        return low

    def add(self, blocks: Sequence[int]) -> None:
        """Have *blocks*, and forget the longest unused where those are too many."""
        known = self._blocks
        # The first one last: it must not be forgotten before those that depend on it.
        for block in reversed(blocks):
            known.pop(block, None)
            known[block] = None
        while len(known) > self._capacity:
            del known[next(iter(known))]
