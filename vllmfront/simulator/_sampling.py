"""Which token a request gets from a distribution, and what is said about its probability."""

import random
from collections.abc import Sequence

import attrs

from vllmfront.engine import GREEDY_BELOW, Logprobs, SamplingParams
from vllmfront.simulator._tokens import Distribution, TokenSource, logprob_of_rank, mix

SAMPLED_RANKS = 256
"""Ranks that sampling without ``top_k`` chooses from; the rest holds under half a percent."""


def _cumulative_weights(params: SamplingParams, ranks: int) -> list[float]:
    """Return the running sums of the weights of ranks 1, 2, ... that may be sampled."""
    limit = min(ranks, params.top_k if params.top_k > 0 else SAMPLED_RANKS)
    power = -2.0 / max(params.temperature, 0.01)
    weights = [rank**power for rank in range(1, limit + 1)]
    weights = [weight for weight in weights if weight >= params.min_p]
    enough = params.top_p * sum(weights)
    sums: list[float] = []
    for weight in weights:
        sums.append((sums[-1] if sums else 0.0) + weight)
        if sums[-1] >= enough:
            break
    return sums


@attrs.define(init=False)
class Sampler:
    """One request's choice among the tokens; penalties and grammars are not imitated."""

    _source: TokenSource
    _params: SamplingParams
    _sums: list[float] | None
    _random: random.Random
    _eos_chance: float
    _masked_first: frozenset[int]
    plain: bool
    """Whether the most likely token is always right: the fast path."""

    def __init__(
        self, source: TokenSource, params: SamplingParams, state: int, nth: int, eos_chance: float
    ) -> None:
        """Draw from *source*, from the history *state* on, as the *nth* request."""
        self._source = source
        self._params = params
        greedy = params.temperature < GREEDY_BELOW
        ranks = source.vocab_size - source.first_token_id
        self._sums = None if greedy else _cumulative_weights(params, ranks)
        seed = params.seed if params.seed is not None else nth
        self._random = random.Random(mix(state ^ mix(seed & (2**64 - 1))))  # noqa: S311
        self._eos_chance = eos_chance if params.eos_token_id is not None else 0.0
        self._masked_first = frozenset(params.all_stop_token_ids if params.min_tokens else ())
        self.plain = (
            greedy
            and not self._eos_chance
            and not self._masked_first
            and not params.allowed_token_ids
            and not params.logit_bias
            and not params.bad_words_token_ids
        )

    def next_token(self, state: int, output: Sequence[int]) -> int:
        """Return the token that follows the history *state*, of which *output* is the answer."""
        if self.plain:
            return self._source.best(state)
        params = self._params
        if (
            self._eos_chance
            and params.eos_token_id is not None
            and len(output) >= params.min_tokens
            and self._source.ends(state, self._eos_chance)
        ):
            return params.eos_token_id
        distribution = self._source.distribution(state)
        index = 0
        if self._sums is not None:
            point = self._random.random() * self._sums[-1]
            index = next((i for i, total in enumerate(self._sums) if total > point), 0)
        banned = self._banned(output)
        if not banned and not params.allowed_token_ids and not params.logit_bias:
            return distribution.token(index + 1)
        candidates = self._candidates(distribution, banned, index)
        return candidates[min(index, len(candidates) - 1)]

    def _banned(self, output: Sequence[int]) -> set[int]:
        banned = set(self._masked_first) if len(output) < self._params.min_tokens else set()
        for word in self._params.bad_words_token_ids or ():
            head = list(word[:-1])
            if not head or list(output[-len(head) :]) == head:
                banned.add(word[-1])
        return banned

    def _candidates(
        self, distribution: Distribution, banned: set[int], index: int
    ) -> Sequence[int]:
        """Return the tokens that may come, best first: at least *index* + 1 where there are."""
        allowed, bias = self._params.allowed_token_ids, self._params.logit_bias or {}
        if allowed:
            tokens = set(allowed)
        else:
            needed = min(index + 1 + len(banned) + len(bias), distribution.size)
            tokens = {distribution.token(rank) for rank in range(1, needed + 1)} | set(bias)
        scores = {
            token: logprob_of_rank(distribution.rank(token)) + bias.get(token, 0.0)
            for token in tokens - banned
        }
        return sorted(scores, key=scores.__getitem__, reverse=True) or sorted(tokens)


def describe_tokens(
    distributions: Sequence[Distribution],
    tokens: Sequence[int],
    count: int,
    named: Sequence[int] | None = None,
) -> Logprobs:
    """Return the log probabilities of *tokens* and of their alternatives.

    Args:
        distributions: One a token: what it was drawn from.
        tokens: The tokens that came.
        count: Alternatives a token, the most likely ones; -1 for the whole vocabulary.
        named: Score these ids in place of the most likely ones.
    """
    ids, logprobs, ranks = [], [], []
    for distribution, token in zip(distributions, tokens, strict=True):
        width = distribution.size if count < 0 else count
        rank = distribution.rank(token)
        ranks.append(rank)
        if named is None:
            alternatives = [distribution.token(r) for r in range(1, width + 1)]
            scores = [logprob_of_rank(r) for r in range(1, width + 1)]
        else:
            alternatives = list(named)
            scores = [logprob_of_rank(distribution.rank(other)) for other in named]
        ids.append([token, *alternatives])
        logprobs.append([logprob_of_rank(rank), *scores])
    return Logprobs(ids, logprobs, ranks)
