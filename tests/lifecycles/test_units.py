"""Which processes run the engines of a node, and with which words."""

from collections.abc import Mapping

import pytest

from vllmfront.errors import ConfigurationError
from vllmfront.lifecycles import EngineConfig
from vllmfront.lifecycles._units import plan_units

ARGUMENTS = ("--dtype", "half")


def planned(*, lockstep: bool, **fields: object) -> Mapping[str, str]:
    """Return the words of each process, by its name."""
    config = EngineConfig(**{"arguments": ARGUMENTS, **fields})  # type: ignore[arg-type]
    return {unit.name: " ".join(unit.arguments) for unit in plan_units(config, lockstep=lockstep)}


def test_engines_that_do_not_know_each_other_have_a_process_each() -> None:
    assert planned(lockstep=False, data_parallel_size=2) == {
        "rank-0": "--data-parallel-size-local 1 --data-parallel-start-rank 0 --device-ids 0 "
        "--dtype half",
        "rank-1": "--data-parallel-size-local 1 --data-parallel-start-rank 1 --device-ids 1 "
        "--dtype half",
    }


def test_engines_that_step_together_share_a_process() -> None:
    [unit] = plan_units(
        EngineConfig(data_parallel_size=4, data_parallel_size_local=2, data_parallel_start_rank=2),
        lockstep=True,
    )

    assert unit.ranks == range(2, 4)
    assert unit.watched == range(4)
    assert " ".join(unit.arguments) == ("--data-parallel-size-local 2 --data-parallel-start-rank 2")


def test_the_loss_of_one_that_steps_alone_is_nobody_elses() -> None:
    units = plan_units(EngineConfig(data_parallel_size=2), lockstep=False)

    assert [(unit.ranks, unit.watched) for unit in units] == [
        (range(1), range(1)),
        (range(1, 2), range(1, 2)),
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "--dtype half"),
        ({"data_parallel_size_local": 1}, "--data-parallel-size-local 1 --dtype half"),
        (
            {"data_parallel_size": 4, "data_parallel_size_local": 1},
            "--data-parallel-size-local 1 --data-parallel-start-rank 0 --dtype half",
        ),
        (
            {"data_parallel_size": 4, "data_parallel_rank": 3},
            "--data-parallel-size-local 1 --data-parallel-start-rank 3 --dtype half",
        ),
    ],
)
def test_a_lone_process_says_where_it_stands_unless_it_is_all(
    fields: Mapping[str, object], words: str
) -> None:
    assert planned(lockstep=False, **fields) == {"process": words}


@pytest.mark.parametrize(
    ("arguments", "devices"),
    [
        ("-tp 2 --pipeline-parallel-size=2", ["0,1,2,3", "4,5,6,7"]),
        ("--tensor-parallel-size 2 --tensor-parallel-size 1", ["0", "1"]),
        ("--device-ids 7,5", ["7", "5"]),
        (
            "--tensor-parallel-size 2 --device-ids=GPU-a,GPU-b,GPU-c,GPU-d",
            ["GPU-a,GPU-b", "GPU-c,GPU-d"],
        ),
    ],
)
def test_each_process_has_devices_of_its_own(arguments: str, devices: list[str]) -> None:
    words = arguments.split()
    units = plan_units(EngineConfig(data_parallel_size=2, arguments=words), lockstep=False)
    found = [unit.arguments for unit in units]

    assert [each[each.index("--device-ids") + 1] for each in found] == devices
    assert all("".join(each).count("--device-ids") == 1 for each in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--device-ids 7", "names 1 devices, but 2 engines on this node need 1 each"),
        ("--tensor-parallel-size two", "--tensor-parallel-size two: expected a whole number"),
    ],
)
def test_devices_that_make_no_sense_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        planned(lockstep=False, data_parallel_size=2, arguments=tuple(arguments.split()))
