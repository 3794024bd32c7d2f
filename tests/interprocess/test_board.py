"""Numbers that several processes share."""

import os
import subprocess
import sys
import threading

import pytest

from vllmfront.errors import ConfigurationError
from vllmfront.interprocess import Board, Cell, RankCell


def test_what_one_process_writes_all_others_see() -> None:
    with Board.create(pages=2, ranks=3) as board:
        script = (
            "import sys; from vllmfront.interprocess import Board, Cell, RankCell\n"
            f"board = Board({board.descriptor}, pages=2, ranks=3)\n"
            "board.pages[1][Cell.CHOICES] = 7\n"
            "board.pages[1].set_rank(2, RankCell.IN_FLIGHT, 1 << 40)\n"
            "print(board.total(Cell.CHOICES))"
        )
        board.pages[0][Cell.CHOICES] = 5
        said = subprocess.run(
            [sys.executable, "-c", script],
            pass_fds=[board.descriptor],
            capture_output=True,
            check=True,
            text=True,
        ).stdout

        assert said == "12\n"
        assert board.pages[1][Cell.CHOICES] == 7
        assert board.rank_total(2, RankCell.IN_FLIGHT) == 1 << 40
        assert board.rank_total(1, RankCell.IN_FLIGHT) == 0


def test_a_page_is_wiped_and_the_others_stay() -> None:
    with Board.create(pages=3, ranks=1) as board:
        for page in board.pages:
            page[Cell.TAKEN] = 2
            page.set_rank(0, RankCell.WAITING, 3)
        board.clear(1)

        assert [page[Cell.TAKEN] for page in board.pages] == [2, 0, 2]
        assert [page.rank(0, RankCell.WAITING) for page in board.pages] == [3, 0, 3]


def test_a_sum_that_all_publish_before_they_look_never_exceeds_the_limit() -> None:
    limit, rounds = 3, 400
    worst = 0
    with Board.create(pages=4, ranks=0) as board:
        start = threading.Barrier(4)

        def work(number: int) -> None:
            nonlocal worst
            page = board.pages[number]
            start.wait()
            for _ in range(rounds):
                mine = page[Cell.CHOICES] + 1
                if board.total_after(page, Cell.CHOICES, mine) > limit:
                    page[Cell.CHOICES] = mine - 1
                    continue
                admitted[number] = mine
                worst = max(worst, sum(admitted))
                admitted[number] = mine - 1
                page[Cell.CHOICES] = mine - 1

        admitted = [0] * 4
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert 0 < worst <= limit


def test_a_descriptor_that_is_no_memory_is_refused() -> None:
    read, write = os.pipe()
    os.close(write)

    with pytest.raises(ConfigurationError, match="no shared memory"):
        Board(read, pages=1, ranks=1)

    os.close(read)
