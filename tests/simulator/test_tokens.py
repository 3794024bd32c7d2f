import math

from hypothesis import given
from hypothesis import strategies as st

from vllmfront.simulator import TokenSource
from vllmfront.simulator._tokens import logprob_of_rank

sources = st.builds(
    TokenSource,
    seed=st.integers(0, 2**64),
    vocab_size=st.integers(12, 3000),
    first_token_id=st.integers(0, 10),
)
histories = st.lists(st.integers(0, 2999), max_size=8)


def state_of(source: TokenSource, history: list[int]) -> int:
    state = source.start()
    for token in history:
        state = source.extend(state, token)
    return state


@given(sources, histories)
def test_every_token_has_one_rank(source: TokenSource, history: list[int]) -> None:
    distribution = source.distribution(state_of(source, history))
    ranked = [distribution.token(rank) for rank in range(1, source.vocab_size + 1)]

    assert sorted(ranked) == list(range(source.vocab_size))
    assert [distribution.rank(token) for token in ranked] == list(range(1, source.vocab_size + 1))


@given(sources, histories)
def test_the_best_token_has_rank_one(source: TokenSource, history: list[int]) -> None:
    state = state_of(source, history)

    assert source.best(state) == source.distribution(state).token(1)
    assert source.best(state) >= source.first_token_id


def test_ids_below_the_first_come_last() -> None:
    distribution = TokenSource(0, 10, 4).distribution(99)

    assert [distribution.token(rank) for rank in range(7, 11)] == [0, 1, 2, 3]


def test_probabilities_add_up_to_one() -> None:
    total = sum(math.exp(logprob_of_rank(rank)) for rank in range(1, 32001))

    assert math.isclose(total, 1.0, abs_tol=1e-4)


def test_answers_depend_on_seed_and_history() -> None:
    one, other = TokenSource(1, 32000), TokenSource(2, 32000)

    assert one.best(state_of(one, [5])) == one.best(state_of(one, [5]))
    assert one.best(state_of(one, [5])) != one.best(state_of(one, [6]))
    assert one.best(state_of(one, [5])) != other.best(state_of(other, [5]))


@given(sources, histories, st.lists(st.integers(0, 2999), min_size=1, max_size=8))
def test_an_answer_goes_on_where_a_longer_prompt_takes_it_up(
    source: TokenSource, prompt: list[int], more: list[int]
) -> None:
    state = state_of(source, prompt)
    for token in more:
        state = source.extend(state, token)

    assert state == state_of(source, prompt + more)


def test_texts_end_as_often_as_they_should() -> None:
    source = TokenSource(1, 500)
    ends = sum(source.ends(state_of(source, [number]), 0.2) for number in range(2000))

    assert math.isclose(ends / 2000, 0.2, abs_tol=0.03)
