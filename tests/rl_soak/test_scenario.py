from collections import Counter
from pathlib import Path

from tests.rl_soak._scenario import DEATHS, KINDS, MODES, ORDERS, draw_cycle
from tests.rl_soak._strikes import REQUEST, START, Strike, StrikeBox

SEED, CYCLES = 11, 200


def test_cycles_follow_from_seed_and_number() -> None:
    assert draw_cycle(SEED, 5) == draw_cycle(SEED, 5)
    assert draw_cycle(SEED, 5) != draw_cycle(SEED + 1, 5)


def test_so_many_cycles_have_all_of_it() -> None:
    cycles = [draw_cycle(SEED, number) for number in range(CYCLES)]
    strikes = [one for cycle in cycles for rank in cycle.strikes for one in rank]
    places = Counter(strike.at for strike in strikes)

    assert Counter(cycle.mode for cycle in cycles).keys() == set(MODES)
    assert {cycle.dies for cycle in cycles} == {None, *DEATHS}
    assert places.keys() == {*ORDERS, REQUEST, START}
    assert min(places.values()) >= 4
    assert {strike.kind for strike in strikes} == {kind.value for kind in KINDS}
    assert {strike.done for strike in strikes} == {True, False}
    assert sum(cycle.rival is not None for cycle in cycles) > 20
    assert any(cycle.spoiled for cycle in cycles)
    assert any(cycle.gives_up for cycle in cycles)
    assert any(cycle.killed is not None for cycle in cycles)


def test_a_strike_happens_once_and_outlives_who_looks(tmp_path: Path) -> None:
    file = tmp_path / "strikes.json"
    StrikeBox(file).put([Strike(at="a", kind="crash"), Strike(at="b", kind="hang")])

    assert StrikeBox(file).take("c") is None
    assert StrikeBox(file).take("b") == Strike(at="b", kind="hang")
    assert StrikeBox(file).take("b") is None
    assert StrikeBox(file).waiting() == [Strike(at="a", kind="crash")]
