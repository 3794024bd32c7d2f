"""What versions of the weights are worth, and which tokens they make."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tests.rl_soak._pieces import pieces_of
from vllmfront.simulator import TokenSource

VOCAB_SIZE = 2048
SEED = 0
DEFAULT = "default"
"""What engines call the weights that they were started with."""

NO_WEIGHTS = 0


@lru_cache(maxsize=4096)
def weights_of(version: str) -> int:
    """Return what the stand-in's token source draws with once it has all of *version*."""
    if version == DEFAULT:
        return NO_WEIGHTS
    loaded = b""
    for piece in pieces_of(version, int(version.rpartition("-")[2])):
        loaded = hashlib.sha256(loaded + json.dumps(piece, sort_keys=True).encode()).digest()
    return int.from_bytes(loaded[:8])


class History:
    """A prompt and what was said after it; knows which token each version would say next."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._source = TokenSource(SEED, VOCAB_SIZE)
        self._state = self._source.start()
        for token in prompt:
            self.extend(token)

    def extend(self, token: int) -> None:
        self._state = self._source.extend(self._state, token)

    def next_token(self, version: str) -> int:
        """Return what *version* says next."""
        self._source.weights = weights_of(version)
        return self._source.best(self._state)


def span_complaints(
    history: History, tokens: Sequence[int], spans: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Say which *tokens* are not those of the versions that *spans* name; extends *history*."""
    found = []
    bounds = [0, *(span["end"] for span in spans)]
    if [span["start"] for span in spans] != bounds[:-1] or bounds[-1] != len(tokens):
        found.append(f"the spans {spans} do not cover {len(tokens)} tokens")
    for place, token in enumerate(tokens):
        version = next((one["version"] for one in spans if one["start"] <= place < one["end"]), "")
        if version and not found and token != (right := history.next_token(version)):
            found.append(f"token {place} is {token}, and {version} says {right}")
        history.extend(token)
    return found


def plausible_complaints(
    history: History, tokens: Sequence[int], versions: Sequence[str]
) -> list[str]:
    """Say which *tokens*, of which nobody said what made them, none of *versions* would make."""
    found: list[str] = []
    for place, token in enumerate(tokens):
        if not found and token not in {history.next_token(version) for version in versions}:
            found.append(f"token {place} is {token}, which none of {list(versions)} says")
        history.extend(token)
    return found
