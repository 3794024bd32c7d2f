"""The part of the stand-in's worker that takes new weights: order errors, and other tokens."""

import pytest

from vllmfront.simulator._tokens import TokenSource
from vllmfront.simulator._weights import WeightWorker


def worker(**fields: object) -> WeightWorker:
    one = WeightWorker(TokenSource(1, 500), **fields)  # type: ignore[arg-type]
    one.init_weight_transfer_engine({})
    return one


def said(one: WeightWorker, count: int = 8) -> list[int]:
    state, tokens = one.source.start(), []
    for _ in range(count):
        tokens.append(one.source.best(state))
        state = one.source.extend(state, tokens[-1])
    return tokens


def load(one: WeightWorker, *chunks: object) -> None:
    one.start_weight_update()
    for chunk in chunks:
        one.update_weights(chunk)
    one.finish_weight_update()


def test_new_weights_say_something_else_and_the_same_ones_the_same() -> None:
    one, other = worker(), worker()
    before = said(one)
    load(one, {"a": 1}, {"b": 2})
    after = said(one)
    load(other, {"old": True})
    load(other, {"a": 1}, {"b": 2})

    assert before != after
    assert said(other) == after
    assert one.checksums() == other.checksums() != worker().checksums()


def test_what_is_written_goes_on_in_the_way_of_the_new_weights() -> None:
    one = worker()
    state = one.source.extend(one.source.start(), 7)
    before = one.source.best(state)
    load(one, {"a": 1})

    assert one.source.extend(one.source.start(), 7) == state
    assert one.source.best(state) != before


def test_a_model_is_worth_nothing_during_an_update_and_gets_back_what_nothing_came_for() -> None:
    one = worker()
    before = said(one)
    one.start_weight_update()
    emptied = said(one)
    one.finish_weight_update()

    assert emptied != before
    assert said(one) == before


def test_an_update_that_fails_is_forgotten_and_can_be_begun_again() -> None:
    one = worker()
    before = said(one)
    one.start_weight_update()
    with pytest.raises(IndexError):
        one.update_weights([])
    with pytest.raises(RuntimeError, match="finish_weight_update: there is no update"):
        one.finish_weight_update()
    assert said(one) != before

    one.start_weight_update()
    one.finish_weight_update()
    assert said(one) == before


@pytest.mark.parametrize(
    ("before", "method", "args"),
    [
        ((), "update_weights", [{"a": 1}]),
        ((), "finish_weight_update", []),
        (("start_weight_update",), "start_weight_update", []),
        (("start_weight_update",), "shutdown_weight_transfer_engine", []),
        ((), "start_draft_weight_update", []),
    ],
)
def test_what_comes_at_the_wrong_time_is_an_error(
    before: tuple[str, ...], method: str, args: list[object]
) -> None:
    one = worker()
    for each in before:
        getattr(one, each)()

    with pytest.raises(RuntimeError):
        getattr(one, method)(*args)


def test_without_a_backend_nothing_is_taken() -> None:
    with pytest.raises(RuntimeError, match="weight_transfer_config"):
        worker(enabled=False)


def test_each_worker_takes_its_own_part_of_a_list() -> None:
    first, second = worker(), worker(place=1)
    for one in (first, second):
        load(one, [{"part": 0}, {"part": 1}])

    assert said(first) != said(second)


def test_draft_weights_leave_the_answers_as_they_are() -> None:
    one = worker(draft_model=True)
    before, sums = said(one), one.checksums()
    one.start_draft_weight_update()
    one.update_weights({"a": 1})
    one.finish_weight_update()

    assert said(one) == before
    assert one.checksums()["draft"] != sums["draft"]
    assert one.checksums()["token_source"] == sums["token_source"]
