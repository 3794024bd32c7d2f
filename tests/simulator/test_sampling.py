import math
from collections import Counter

import pytest

from vllmfront.engine import SamplingParams
from vllmfront.simulator._sampling import Sampler, describe_tokens
from vllmfront.simulator._tokens import TokenSource, logprob_of_rank

SOURCE = TokenSource(3, 1000)
STATE = SOURCE.start()


def sampler(*, nth: int = 0, eos_chance: float = 0.0, **params: object) -> Sampler:
    given = SamplingParams(**params)  # type: ignore[arg-type]  # keywords of the caller
    return Sampler(SOURCE, given, STATE, nth, eos_chance)


def draw(count: int, **params: object) -> list[int]:
    source = sampler(**params)  # type: ignore[arg-type]  # keywords of the caller
    return [source.next_token(STATE, []) for _ in range(count)]


def test_greedy_takes_the_best() -> None:
    greedy = sampler(temperature=0.0)

    assert greedy.plain
    assert greedy.next_token(STATE, []) == SOURCE.best(STATE)


def test_a_seed_repeats_and_requests_without_one_differ() -> None:
    assert draw(20, seed=4) == draw(20, seed=4)
    assert draw(20, seed=4) != draw(20, seed=5)
    assert sampler(nth=1).next_token(STATE, []) in range(1000)


def test_top_k_limits_the_ranks() -> None:
    distribution = SOURCE.distribution(STATE)
    ranks = {distribution.rank(token) for token in draw(200, top_k=3, temperature=2.0)}

    assert ranks == {1, 2, 3}


def test_top_p_limits_the_mass() -> None:
    distribution = SOURCE.distribution(STATE)

    assert {distribution.rank(token) for token in draw(200, top_p=0.5)} == {1}


def test_min_p_limits_by_the_best() -> None:
    distribution = SOURCE.distribution(STATE)

    # Rank 2 has a quarter of the best one's probability, rank 3 a ninth.
    assert {distribution.rank(token) for token in draw(300, min_p=0.2)} == {1, 2}


def test_better_ranks_come_more_often() -> None:
    distribution = SOURCE.distribution(STATE)
    ranks = Counter(distribution.rank(token) for token in draw(2000))

    assert ranks[1] > ranks[2] > ranks[3]
    assert math.isclose(ranks[1] / 2000, math.exp(logprob_of_rank(1)), abs_tol=0.05)


def test_stop_ids_are_masked_until_min_tokens() -> None:
    best = SOURCE.best(STATE)
    masked = sampler(temperature=0.0, min_tokens=2, all_stop_token_ids=[best])

    assert masked.next_token(STATE, [1]) != best
    assert masked.next_token(STATE, [1, 2]) == best


def test_bad_words_are_whole_sequences() -> None:
    best = SOURCE.best(STATE)
    banned = sampler(temperature=0.0, bad_words_token_ids=[[7, best]])

    assert banned.next_token(STATE, [7]) != best
    assert banned.next_token(STATE, [8]) == best


def test_a_bias_moves_a_token_up_or_out() -> None:
    best = SOURCE.best(STATE)

    assert draw(1, temperature=0.0, logit_bias={5: 100.0}) == [5]
    assert draw(1, temperature=0.0, logit_bias={best: -100.0}) != [best]


def test_only_allowed_tokens_come() -> None:
    assert set(draw(50, allowed_token_ids=[4, 9])) == {4, 9}


def test_eos_comes_by_chance() -> None:
    assert sampler(eos_chance=1.0, eos_token_id=2).next_token(STATE, []) == 2
    assert sampler(eos_chance=1.0).next_token(STATE, []) != 2
    early = sampler(eos_chance=1.0, eos_token_id=2, min_tokens=3)
    assert early.next_token(STATE, [1]) != 2


@pytest.mark.parametrize(("count", "width"), [(0, 1), (2, 3), (-1, 1001)])
def test_logprobs_have_the_token_first(count: int, width: int) -> None:
    distribution = SOURCE.distribution(STATE)
    token = distribution.token(7)
    described = describe_tokens([distribution], [token], count)

    assert described.ranks == [7]
    assert [len(row) for row in described.token_ids] == [width]
    assert described.token_ids[0][0] == token
    assert described.logprobs[0][0] == logprob_of_rank(7)
    assert described.logprobs[0][1:] == sorted(described.logprobs[0][1:], reverse=True)


def test_named_ids_are_scored_in_their_order() -> None:
    distribution = SOURCE.distribution(STATE)
    described = describe_tokens([distribution], [1], 0, [9, 8])

    assert described.token_ids == [[1, 9, 8]]
    assert described.logprobs[0][1] == logprob_of_rank(distribution.rank(9))
