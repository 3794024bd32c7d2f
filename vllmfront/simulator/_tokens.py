"""A language model without weights: every history of tokens has one fixed next distribution.

The distribution after a history is a ranking of the whole vocabulary, an affine permutation
drawn from a hash of the history, with probabilities that fall with the square of the rank. So
the most likely tokens, the rank of any token and its log probability all cost a few integer
operations, and a prompt that repeats an earlier answer continues as the answer did.
"""

import math

import attrs

MASK = (1 << 64) - 1
END_SALT = 0xD1B54A32D192ED03
"""Keeps the choice of an end apart from that of a token."""

LOG_ZETA_2 = math.log(math.pi**2 / 6)
"""Normalises probabilities proportional to 1 / rank**2."""


def mix(value: int) -> int:
    """Scramble 64 bits so that neighbours have nothing in common (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def logprob_of_rank(rank: int) -> float:
    """Return the log probability, in nats, of the token of that *rank*, from 1."""
    return -2.0 * math.log(rank) - LOG_ZETA_2


@attrs.frozen
class Distribution:
    """The ranking of the vocabulary after one history."""

    size: int
    factor: int
    offset: int
    first: int
    """The lowest id that is ranked; the ids below it follow all others."""

    def token(self, rank: int) -> int:
        """Return the id of that *rank*, from 1 to the size of the vocabulary."""
        ranked = self.size - self.first
        if rank > ranked:
            return rank - ranked - 1
        return self.first + (self.factor * (rank - 1) + self.offset) % ranked

    def rank(self, token: int) -> int:
        """Return the rank, from 1, of that *token*."""
        ranked = self.size - self.first
        if token < self.first:
            return ranked + token + 1
        return (token - self.first - self.offset) * pow(self.factor, -1, ranked) % ranked + 1


@attrs.define
class TokenSource:
    """Makes distributions; two with the same seed, vocabulary and weights agree on all of them."""

    seed: int
    vocab_size: int
    first_token_id: int = 0
    weights: int = 0
    """Stands for what the model was given since it was started; the history keeps nothing of it,
    so that other weights go on with it in their own way."""

    def start(self, adapter: int | None = None) -> int:
        """Return the state of an empty history, for the model alone or with an *adapter*."""
        state = mix(self.seed & MASK)
        return state if adapter is None else mix(state ^ mix(adapter))

    def extend(self, state: int, token: int) -> int:
        """Return the state after one more token."""
        return ((state ^ token) * 0x2545F4914F6CDD1D + 0x9E3779B9) & MASK

    def best(self, state: int) -> int:
        """Return the most likely next token: what greedy sampling takes."""
        ranked = self.vocab_size - self.first_token_id
        return self.first_token_id + mix(state ^ self.weights) % ranked

    def ends(self, state: int, chance: float) -> bool:
        """Tell whether the text ends after the history *state*, as a part *chance* of them do."""
        return mix(state ^ self.weights ^ END_SALT) < chance * (MASK + 1)

    def distribution(self, state: int) -> Distribution:
        """Return the whole ranking after the history that *state* stands for."""
        ranked = self.vocab_size - self.first_token_id
        state ^= self.weights
        factor = (mix(state ^ MASK) % ranked) | 1
        while math.gcd(factor, ranked) != 1:
            factor += 2
        return Distribution(self.vocab_size, factor, mix(state) % ranked, self.first_token_id)
