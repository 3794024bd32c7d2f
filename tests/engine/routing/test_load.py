"""Which rank is chosen."""

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.routing.ranks import Rank
from vllmfront.engine.routing import RankLoad, least_loaded


def loads(count: int) -> dict[int, RankLoad]:
    return {rank: RankLoad() for rank in range(count)}


def choose(ranks: dict[int, RankLoad]) -> int:
    return least_loaded([Rank(rank, load) for rank, load in ranks.items()]).rank


def send(ranks: dict[int, RankLoad], count: int) -> list[int]:
    """Choose for *count* requests that arrive at once."""
    chosen = []
    for _ in range(count):
        chosen.append(choose(ranks))
        ranks[chosen[-1]].send()
    return chosen


def test_requests_one_after_the_other_all_go_to_rank_0() -> None:
    ranks = loads(3)
    chosen = []
    for _ in range(5):
        chosen += send(ranks, 1)
        ranks[chosen[-1]].report(running=1, waiting=0)
        ranks[chosen[-1]].end()

    assert chosen == [0, 0, 0, 0, 0]


def test_eight_at_once_go_around() -> None:
    assert send(loads(3), 8) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_eight_at_once_go_around_also_after_a_report() -> None:
    ranks = loads(3)
    ranks[0].report(running=0, waiting=0)

    assert send(ranks, 8) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_rank_with_a_queue_is_avoided() -> None:
    ranks = loads(2)
    ranks[0].report(running=4, waiting=3)
    ranks[1].report(running=16, waiting=0)

    assert choose(ranks) == 0

    ranks[0].report(running=4, waiting=4)

    assert choose(ranks) == 1


def test_what_others_send_to_a_rank_counts() -> None:
    ranks = loads(2)
    ranks[0].report(running=3, waiting=0)

    assert choose(ranks) == 1


def test_a_burst_between_two_reports_stays_balanced() -> None:
    ranks = loads(8)
    for rank, load in ranks.items():
        for _ in range(16 + (rank == 0)):
            load.send()
        load.report(running=16, waiting=int(rank == 0))

    chosen = send(ranks, 512)

    # The one that was known to wait counts as four.
    waiting = [chosen.count(rank) + 4 * (rank == 0) for rank in ranks]
    assert max(waiting) - min(waiting) <= 1


def test_who_has_just_reported_looks_no_less_busy() -> None:
    ranks = loads(2)
    send(ranks, 32)
    ranks[0].report(running=16, waiting=0)

    assert send(ranks, 8) == [0, 1] * 4


def test_what_other_clients_do_meanwhile_is_taken_to_be_what_we_do() -> None:
    ranks = {0: RankLoad(sharers=4), 1: RankLoad(sharers=4)}
    for load in ranks.values():
        load.report(running=40, waiting=0)
    ranks[0].send()

    assert ranks[0].score() == 44
    ranks[0].end()
    assert ranks[0].score() == 40


def test_an_old_report_of_a_queue_does_not_outlive_the_requests() -> None:
    ranks = loads(2)
    for _ in range(20):
        ranks[0].send()
    ranks[0].report(running=10, waiting=10)
    for _ in range(20):
        ranks[0].end()

    assert ranks[0].score() == 0
    assert choose(ranks) == 0


@given(st.lists(st.sampled_from(["send", "end", "report"]), max_size=50), st.integers(0, 9))
def test_scores_are_never_negative(steps: list[str], reported: int) -> None:
    load = RankLoad()
    for step in steps:
        if step == "send":
            load.send()
        elif step == "end" and load.in_flight:
            load.end()
        elif step == "report":
            load.report(reported, reported)

        assert load.score() >= load.in_flight >= 0
        assert str(load.in_flight) in repr(load)
