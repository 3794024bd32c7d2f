"""Loads that several processes know together."""

from collections.abc import Iterator

import pytest

from vllmfront.engine.routing import RankLoad
from vllmfront.interprocess import Board
from vllmfront.lifecycles.workers._loads import BoardLoads


@pytest.fixture
def loads() -> Iterator[list[BoardLoads]]:
    """Return those of two processes, for engines 4 and 5."""
    with Board.create(pages=2, ranks=2) as board:
        yield [BoardLoads(board, page, 4) for page in board.pages]


def test_what_one_process_sends_all_others_know_at_once(loads: list[BoardLoads]) -> None:
    here, there = loads[0](4), loads[1](4)
    for _ in range(3):
        here.send()

    assert (there.in_flight, there.score(), loads[1](5).score()) == (0, 3, 0)


def test_the_newest_report_counts_whoever_got_it(loads: list[BoardLoads]) -> None:
    here, there = loads[0](5), loads[1](5)
    here.send()
    here.send()
    there.send()
    here.report(2, 1)

    assert here.score() == there.score() == 3 + 3

    there.report(3, 0)
    assert here.score() == there.score() == 3

    here.end()
    there.send()
    there.send()
    assert here.score() == there.score() == 4
    assert (here.in_flight, there.in_flight) == (1, 3)


def test_one_process_alone_sees_what_it_would_without_a_board(loads: list[BoardLoads]) -> None:
    plain, shared = RankLoad(), loads[0](4)
    seen = []
    for load in (plain, shared):
        scores = []
        for step in range(12):
            load.send()
            if step % 3 == 2:
                load.end()
            if step % 4 == 3:
                load.report(step, step // 3)
            scores.append(load.score())
        seen.append(scores)

    assert seen[0] == seen[1]


def test_signs_of_life_are_shared(loads: list[BoardLoads]) -> None:
    assert loads[0](4).share_signs(5) == 5
    assert loads[1](4).share_signs(2) == 7
    assert loads[0](4).share_signs(5) == 7
