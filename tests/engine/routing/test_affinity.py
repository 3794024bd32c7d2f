"""Requests that go where their prefix, or their session, was before."""

import pytest

from tests.engine.routing.ranks import Rank, ranks, request
from vllmfront.engine import EngineRequest, LoraRequest
from vllmfront.engine.routing import (
    PrefixRouting,
    Routing,
    RoutingPolicy,
    SessionRouting,
    make_routing,
    not_overloaded,
)
from vllmfront.engine.routing._prefix import BLOCK, MAX_BLOCKS, PrefixTable, block_hashes
from vllmfront.engine.routing._session import MAX_SESSIONS

DOCUMENT = range(10 * BLOCK)


def route(routing: Routing, candidates: list[Rank], asked: EngineRequest) -> int:
    """Send *asked*, and have it end at once; return where to."""
    chosen = routing.choose(candidates, asked)
    routing.sent(chosen, asked)
    return chosen.rank


def busy(candidates: list[Rank], *counts: int) -> None:
    for candidate, count in zip(candidates, counts, strict=True):
        candidate.send(count)


def test_who_is_a_little_busier_is_not_overloaded() -> None:
    candidates = ranks(4)
    busy(candidates, 0, 4, 5, 9)

    assert [each.rank for each in not_overloaded(candidates)] == [0, 1]
    busy(candidates, 100, 100, 100, 100)
    assert [each.rank for each in not_overloaded(candidates)] == [0, 1, 2, 3]


def test_the_same_prefix_goes_to_the_same_rank() -> None:
    routing, candidates = PrefixRouting(), ranks(3)
    busy(candidates, 1, 1, 0)
    assert route(routing, candidates, request(DOCUMENT)) == 2
    busy(candidates, 0, 0, 4)

    assert route(routing, candidates, request(range(len(DOCUMENT) + 100))) == 2
    assert route(routing, candidates, request(range(5000, 6000))) == 0


def test_the_longest_prefix_wins() -> None:
    routing, candidates = PrefixRouting(), ranks(2)
    routing.sent(candidates[0], request(DOCUMENT[: 2 * BLOCK]))
    routing.sent(candidates[1], request(DOCUMENT[: 3 * BLOCK]))

    assert route(routing, candidates, request(DOCUMENT)) == 1


def test_of_those_that_have_it_the_least_busy_is_taken() -> None:
    routing, candidates = PrefixRouting(), ranks(3)
    for each in candidates[:2]:
        routing.sent(each, request(DOCUMENT))
    busy(candidates, 2, 1, 0)

    assert route(routing, candidates, request(DOCUMENT)) == 1


def test_an_overloaded_rank_is_relieved_by_another_which_then_has_the_prefix() -> None:
    routing, candidates = PrefixRouting(), ranks(2)
    assert route(routing, candidates, request(DOCUMENT)) == 0
    busy(candidates, 5, 0)

    assert route(routing, candidates, request(DOCUMENT)) == 1
    busy(candidates, 0, 5)
    candidates[0].load.end()
    assert route(routing, candidates, request(DOCUMENT)) == 0


def test_a_short_prompt_goes_to_the_least_busy() -> None:
    routing, candidates = PrefixRouting(), ranks(2)
    short = request(range(BLOCK - 1))
    routing.sent(candidates[0], short)
    busy(candidates, 1, 0)

    assert route(routing, candidates, short) == 1


def test_a_salt_or_an_adapter_is_another_prefix() -> None:
    adapter = LoraRequest(name="a", int_id=1, path="/a")
    asked = [
        request(DOCUMENT),
        request(DOCUMENT, cache_salt="x"),
        request(DOCUMENT, cache_salt=""),
        EngineRequest(request_id="r", prompt_token_ids=list(DOCUMENT), lora=adapter),
    ]

    assert len({tuple(block_hashes(each)) for each in asked}) == len(asked)
    assert block_hashes(asked[0])[:3] == block_hashes(request(DOCUMENT[: 3 * BLOCK + 1]))


def test_very_long_prompts_count_by_their_beginning() -> None:
    assert len(block_hashes(request(range(BLOCK * (MAX_BLOCKS + 9))))) == MAX_BLOCKS


def test_a_new_process_has_no_prefix() -> None:
    routing, candidates = PrefixRouting(), ranks(2)
    routing.sent(candidates[1], request(DOCUMENT))
    routing.forget(1)

    assert route(routing, candidates, request(DOCUMENT)) == 0


def test_a_rank_forgets_as_its_cache_does() -> None:
    candidate = Rank(0, cache_tokens=1)
    routing = PrefixRouting()
    for start in range(0, 100_000, 10_000):
        routing.sent(candidate, request(range(start, start + 100 * BLOCK)))

    assert repr(routing) == f"<PrefixRouting of {MAX_BLOCKS} blocks>"


def test_the_end_of_a_prefix_is_forgotten_before_its_beginning() -> None:
    table = PrefixTable(5)
    table.add([1, 2, 3])
    table.add([4, 5, 6])

    assert table.depth([4, 5, 6]) == 3
    assert table.depth([1, 2, 3]) == 2
    table.add([1])
    table.add([7])
    assert table.depth([1, 2, 3]) == 1
    assert table.depth([4, 5, 6]) == 3


def test_a_session_stays_where_it_was_unless_that_is_overloaded() -> None:
    routing, candidates = SessionRouting(), ranks(2)
    busy(candidates, 1, 0)
    ours = request(range(3), session_id="a")
    assert route(routing, candidates, ours) == 1
    busy(candidates, 0, 4)
    assert route(routing, candidates, ours) == 1
    busy(candidates, 0, 2)
    assert route(routing, candidates, ours) == 0
    busy(candidates, 5, 0)

    assert route(routing, candidates, ours) == 0
    assert route(routing, candidates[1:], ours) == 1
    assert route(routing, candidates, request(range(3))) == 0


def test_a_session_whose_rank_was_replaced_is_free_to_go() -> None:
    routing, candidates = SessionRouting(), ranks(2)
    ours = request(range(3), session_id="a")
    routing.sent(candidates[1], ours)
    routing.forget(1)

    assert route(routing, candidates, ours) == 0


def test_sessions_are_forgotten_when_there_are_very_many() -> None:
    routing, [candidate] = SessionRouting(), ranks(1)
    for number in range(MAX_SESSIONS + 5):
        routing.sent(candidate, request(range(0), session_id=str(number)))

    assert repr(routing) == f"<SessionRouting of {MAX_SESSIONS} sessions>"


@pytest.mark.parametrize("policy", [RoutingPolicy.PREFIX, RoutingPolicy.SESSION])
def test_frontends_that_know_nothing_of_each_other_choose_alike(policy: RoutingPolicy) -> None:
    candidates = ranks(8)
    asked = [
        request(range(start, start + 2 * BLOCK), session_id=f"s{start}")
        for start in range(0, 40_000, 100)
    ]

    def chosen(from_these: list[Rank]) -> list[int]:
        return [route(make_routing(policy, shared=True), from_these, each) for each in asked]

    first, second = chosen(candidates), chosen(candidates)

    assert first == second
    # All ranks get their part, and a rank that is missing changes nothing for the others.
    assert min(first.count(rank) for rank in range(8)) > len(asked) // 16
    fewer = chosen(candidates[:7])
    assert [new for old, new in zip(first, fewer, strict=True) if old < 7] == [
        old for old in first if old < 7
    ]
