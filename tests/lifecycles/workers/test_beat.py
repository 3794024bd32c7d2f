"""When a worker counts as stuck."""

from collections.abc import Iterable

import pytest
import trio
from trio.testing import MockClock

from vllmfront.interprocess import Board, Cell, Page
from vllmfront.lifecycles.workers._beat import STUCK_SECONDS, wait_stuck


async def _beat_at(page: Page, moments: Iterable[float]) -> None:
    for moment in moments:
        await trio.sleep_until(moment)
        page[Cell.BEAT] += 1


@pytest.mark.parametrize(
    ("beats", "counts_from", "stuck_after"),
    [
        ([], 0.0, STUCK_SECONDS),
        ([10.5], 0.0, 11 + STUCK_SECONDS),
        ([20.5, 40.5, 60.5], 0.0, 61 + STUCK_SECONDS),
        ([], 99.5, 99 + STUCK_SECONDS),  # it was not to give any before
    ],
)
async def test_a_worker_without_a_sign_of_life_is_stuck(
    beats: list[float], counts_from: float, stuck_after: float, autojump_clock: MockClock
) -> None:
    begun = autojump_clock.current_time()
    with Board.create(pages=1, ranks=0) as board:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_beat_at, board.pages[0], [begun + each for each in beats])
            await wait_stuck(board.pages[0], lambda: trio.current_time() - begun > counts_from)
            took = trio.current_time() - begun

    assert took == pytest.approx(stuck_after)
