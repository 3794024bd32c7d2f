from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmfront.errors import ConfigurationError
from vllmfront.testing import (
    DEADLY,
    Fault,
    FaultKind,
    FaultPlan,
    Moment,
    Odds,
    load_plan,
)

seeds = st.integers(-(2**70), 2**70)


@given(seeds, st.integers(1, 3), st.integers(1, 5))
def test_a_seed_always_means_the_same_faults(seed: int, ranks: int, lives: int) -> None:
    plan = FaultPlan.from_seed(seed, ranks=ranks, lives=lives)

    assert plan == FaultPlan.from_seed(seed, ranks=ranks, lives=lives)
    assert FaultPlan.from_json(plan.to_json()) == plan


def test_a_seed_means_the_same_in_every_release() -> None:
    plan = FaultPlan.from_seed(3, ranks=2)

    assert [str(fault) for fault in plan.faults] == [
        "rank 0, life 0: drop x2 at output 85",
        "rank 0, life 0: drop x2 at output 251",
        "rank 0, life 0: lie x4 at output 360",
        "rank 1, life 0: mute x2 at call 1",
        "rank 1, life 0: crash at output 19",
    ]


@given(seeds)
def test_a_life_has_the_same_faults_however_many_others_there_are(seed: int) -> None:
    alone = FaultPlan.from_seed(seed)
    among = FaultPlan.from_seed(seed, ranks=3, lives=4)

    assert among.of_life(0, 0) == list(alone.faults)


@given(seeds)
def test_nothing_follows_a_deadly_fault(seed: int) -> None:
    plan = FaultPlan.from_seed(seed, lives=6, odds=Odds(per_life=5))

    for life in range(6):
        kinds = [fault.kind for fault in plan.of_life(0, life)]
        assert not DEADLY & set(kinds[:-1])


def test_every_kind_is_drawn() -> None:
    kinds = {fault.kind for fault in FaultPlan.from_seed(1, lives=300).faults}
    moments = {fault.on for fault in FaultPlan.from_seed(1, lives=300).faults}

    assert kinds == set(FaultKind)
    assert moments == set(Moment) - {Moment.TIME}


def test_odds_choose_the_kinds() -> None:
    odds = Odds(kinds=(FaultKind.DROP,), per_life=2, within=9)
    faults = FaultPlan.from_seed(1, lives=50, odds=odds).faults

    assert len(faults) == 100
    assert {fault.kind for fault in faults} == {FaultKind.DROP}
    assert {fault.at for fault in faults} == set(range(1, 10))


def test_without_kinds_there_are_no_faults() -> None:
    assert FaultPlan.from_seed(1, lives=50, odds=Odds(kinds=())).faults == ()


def test_kinds_can_be_left_out() -> None:
    plan = FaultPlan(faults=(Fault(kind=FaultKind.DROP), Fault(kind=FaultKind.CRASH)))

    assert plan.without(DEADLY).faults == (Fault(kind=FaultKind.DROP),)


def test_a_plan_is_readable() -> None:
    plan = FaultPlan(
        faults=(
            Fault(kind=FaultKind.STALL, seconds=0.5, rank=1, life=2, on=Moment.TIME, at=3.5),
            Fault(kind=FaultKind.DROP, count=2),
        )
    )

    assert str(plan).splitlines() == [
        "2 faults of somebody's choice",
        "  rank 1, life 2: stall for 0.5 s at 3.5 s",
        "  every rank: drop x2 at output 1",
    ]


def test_faults_without_a_rank_or_life_concern_all() -> None:
    everywhere, second = Fault(kind=FaultKind.DROP), Fault(kind=FaultKind.DROP, rank=1, life=2)
    plan = FaultPlan(faults=(everywhere, second))

    assert plan.of_life(0, 7) == [everywhere]
    assert plan.of_life(1, 2) == [everywhere, second]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": FaultKind.DROP, "at": 0}, "'at' must be > 0"),
        ({"kind": FaultKind.DROP, "at": 1.5}, "outputs are counted in whole numbers, not 1.5"),
        ({"kind": FaultKind.DROP, "count": 0}, "'count' must be >= 1"),
        ({"kind": FaultKind.STALL}, "a fault of kind stall needs seconds"),
        ({"kind": FaultKind.DROP, "on": Moment.START}, "an engine that starts cannot drop"),
        ({"kind": FaultKind.CRASH, "on": Moment.START, "at": 4}, "phases of a start are 1, 2 and"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault(**fields)  # type: ignore[arg-type]  # keywords of the table


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON object"),
        ("7", "no JSON object"),
        ('{"faults": [{"kind": "explode"}]}', r"'explode' is not a valid FaultKind @ .*\[0\]"),
        ('{"faults": [{"kind": "stall"}]}', "needs seconds"),
        ('{"faults": [{"kind": "drop", "when": 1}]}', r"extra fields found \(when\)"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FaultPlan.from_json(text)


def test_a_plan_is_named_by_a_seed_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"faults": [{"kind": "drop", "at": 3}]}')

    assert load_plan("seed:-5", ranks=2) == FaultPlan.from_seed(-5, ranks=2)
    assert load_plan(str(file)).faults == (Fault(kind=FaultKind.DROP, at=3),)
    with pytest.raises(ConfigurationError, match="whole number"):
        load_plan("seed:x")
    with pytest.raises(ConfigurationError, match="cannot read the fault plan"):
        load_plan(str(tmp_path / "nothing.json"))
