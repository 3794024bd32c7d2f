"""The prefix cache as far as a frontend can see it: how many prompt tokens were cached."""

from collections.abc import Sequence

import attrs

from vllmfront.simulator._tokens import mix


@attrs.define
class PrefixCache:
    """Whole blocks of token ids, each known by the hash of everything up to its end."""

    block_size: int
    capacity: int
    """Blocks kept; past it the oldest go."""

    _blocks: dict[int, None] = attrs.field(factory=dict, init=False)

    def cached_tokens(self, tokens: Sequence[int], salt: int) -> int:
        """Return how many leading *tokens* are cached: whole blocks, never the last token."""
        cached = 0
        for end, block in self._walk(tokens, salt):
            if block not in self._blocks or end >= len(tokens):
                break
            cached = end
        return cached

    def store(self, tokens: Sequence[int], salt: int) -> None:
        """Keep the whole blocks of *tokens*."""
        for _, block in self._walk(tokens, salt):
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > self.capacity:
            self._blocks.pop(next(iter(self._blocks)))

    def clear(self) -> None:
        self._blocks.clear()

    def _walk(self, tokens: Sequence[int], salt: int) -> list[tuple[int, int]]:
        size, chain, blocks = self.block_size, mix(salt), []
        for end in range(size, len(tokens) + 1, size):
            chain = hash((chain, tuple(tokens[end - size : end])))
            blocks.append((end, chain))
        return blocks
