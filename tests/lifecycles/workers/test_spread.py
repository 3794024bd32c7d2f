"""Who gets the next connection, and how many workers there should be."""

import random
from pathlib import Path

import pytest

from vllmfront.lifecycles.workers._processors import usable_processors
from vllmfront.lifecycles.workers._scaling import BUSY_SECONDS, Scaling, most_workers
from vllmfront.lifecycles.workers._spread import SLACK, Candidate, choose


def candidate(number: int, connections: int, choices: int = 0, silent: float = 0.0) -> Candidate:
    return Candidate(number=number, connections=connections, choices=choices, silent=silent)


def test_the_one_with_the_fewest_connections_gets_the_next() -> None:
    assert choose([candidate(1, 5), candidate(2, 4, choices=9), candidate(3, 6)]) == 2
    assert choose([]) is None


def test_among_those_that_have_about_as_few_the_work_decides() -> None:
    assert choose([candidate(1, 100, 80), candidate(2, 105, 3), candidate(3, 106, 0)]) == 2


def test_one_that_does_not_turn_gets_nothing_unless_none_does() -> None:
    assert choose([candidate(1, 0, silent=1.5), candidate(2, 50)]) == 2
    assert choose([candidate(1, 3, silent=1.5), candidate(2, 5, silent=9.0)]) == 1


def test_connections_stay_even_while_they_come_and_go_and_weigh_differently() -> None:
    chance = random.Random(7)
    open_connections: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for step in range(3000):
        for held in open_connections.values():
            if len(held) > 80 and chance.random() < 0.3:
                held.pop(chance.randrange(len(held)))
        number = choose(
            [candidate(n, len(held), sum(held)) for n, held in open_connections.items()]
        )
        assert number is not None
        open_connections[number].append(chance.choice([0, 1, 1, 8]))
        counts = [len(held) for held in open_connections.values()]
        if step > 300:
            assert max(counts) - min(counts) <= max(2, 2 * SLACK * max(counts))


def test_another_worker_is_wanted_when_all_have_been_busy_for_long() -> None:
    scaling, now, spent = Scaling(most=2), 0.0, 0
    while not scaling.look({1: spent}, now):
        now, spent = now + 1.0, spent + 900_000_000
        assert now < 60

    assert BUSY_SECONDS <= now <= BUSY_SECONDS + 2
    assert scaling.wanted == 2


@pytest.mark.parametrize("share", [0.0, 0.5, 0.7])
def test_no_other_worker_is_wanted_while_those_that_run_keep_up(share: float) -> None:
    scaling = Scaling(most=4)

    assert not any(scaling.look({1: int(now * share * 1e9)}, float(now)) for now in range(100))


def test_one_busy_worker_among_several_asks_for_no_other_nor_does_one_that_starts() -> None:
    scaling = Scaling(most=4, wanted=2)

    assert not any(scaling.look({1: int(now * 1e9), 2: 0}, float(now)) for now in range(100))
    assert not any(scaling.look({1: int(now * 1e9)}, float(now)) for now in range(100, 200))


def test_there_are_no_more_than_may_be() -> None:
    scaling = Scaling(most=1)

    assert not any(scaling.look({1: int(now * 1e9)}, float(now)) for now in range(100))
    assert [most_workers(count) for count in (0.5, 1, 2, 4, 64)] == [1, 1, 1, 3, 8]


def test_a_quota_of_the_container_limits_the_processors(tmp_path: Path) -> None:
    everything = usable_processors(tmp_path)
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    half = usable_processors(tmp_path)
    (tmp_path / "cpu.max").write_text("max 100000\n")

    assert half == 0.5
    assert usable_processors(tmp_path) == everything >= 1
