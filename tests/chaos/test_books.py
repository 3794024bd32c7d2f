import os
import subprocess
from collections.abc import Mapping

import attrs
import pytest

from tests.chaos._books import (
    MEMORY_SLACK,
    Page,
    Tally,
    growth_complaints,
    idle_complaints,
    sum_complaints,
)
from tests.chaos._proc import Holdings, holdings, is_alive

HELD = Holdings(descriptors=30, threads=5, memory=100 << 20, children=2, zombies=0)
IDLE = b'{"server_load":0}'


ENGINES = {"requests": 0, "waiting": 0, "engine_requests": 0, "pending_calls": 0}


def page(load: bytes = IDLE, **samples: Mapping[str, float]) -> Page:
    metrics = {name.replace("__", ":"): by for name, by in samples.items()}
    ranks = [{"rank": 0, "in_flight": 0}]
    return Page(metrics, {"tasks": 20, "engines": {**ENGINES, "ranks": ranks}}, load, HELD)


def busy(**fields: object) -> Page:
    engines = page().inside["engines"]
    return attrs.evolve(page(), inside={"tasks": 20, "engines": {**engines, **fields}})


def ends(**causes: float) -> dict[str, float]:
    return {f"cause={key}": value for key, value in causes.items()}


def ended(requests: dict[str, float], choices: dict[str, float]) -> Page:
    return page(
        vllmfront__request_ends_total=requests, vllmfront__engine_request_ends_total=choices
    )


def test_idle_books_are_at_zero() -> None:
    assert list(idle_complaints(page(vllm__num_requests_running={"engine=0": 0.0}))) == []
    assert len(list(idle_complaints(page(vllm__num_requests_running={"engine=0": 1.0})))) == 1
    assert len(list(idle_complaints(page(b'{"server_load":1}')))) == 1
    assert len(list(idle_complaints(busy(ranks=[{"rank": 0, "in_flight": 1}])))) == 1


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_what_an_engine_client_still_has_is_found(name: str) -> None:
    assert list(idle_complaints(busy(**{name: 1}))) == [f"the engine client still has 1 {name}"]


@pytest.mark.parametrize(
    "more",
    [
        {"descriptors": 40},
        {"threads": 9},
        {"children": 4},
        {"zombies": 1},
        {"memory": HELD.memory + MEMORY_SLACK + 1},
    ],
)
def test_growth_is_found(more: dict[str, int]) -> None:
    grown = attrs.evolve(page(), held=attrs.evolve(HELD, **more))

    assert list(growth_complaints(page(), page())) == []
    assert len(list(growth_complaints(page(), grown))) == 1


def test_tasks_that_stay_are_found() -> None:
    grown = attrs.evolve(page(), inside={"tasks": 21})

    assert list(growth_complaints(page(), grown)) == ["tasks grew from 20 to 21"]


BEFORE = ended(ends(stop=3.0, length=1.0), ends(stop=4.0))
AFTER = ended(
    ends(stop=8.0, length=3.0, timed_out=1.0, client_gone=2.0), ends(stop=20.0, client_gone=2.0)
)
TALLY = Tally(
    requests=11, unseen=1, answered=7, timed_out=1, unknown=3, choices=20, answered_choices=16
)


def test_ends_add_up_to_what_clients_saw() -> None:
    assert list(sum_complaints(BEFORE, AFTER, TALLY)) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"requests": 9}, "10 requests ended, of 8 to 9"),
        ({"requests": 12}, "10 requests ended, of 11 to 12"),
        ({"answered": 8}, "7 requests ended well, of 8 to 11"),
        ({"answered": 3}, "7 requests ended well, of 3 to 6"),
        ({"timed_out": 2}, "1 requests timed out, of 2 to 5"),
        ({"answered_choices": 19}, "18 choices ended, of 19 to 20"),
        ({"choices": 17}, "18 choices ended, of 16 to 17"),
    ],
)
def test_ends_that_do_not_add_up_are_found(change: dict[str, int], complaint: str) -> None:
    assert complaint in list(sum_complaints(BEFORE, AFTER, attrs.evolve(TALLY, **change)))


def test_bugs_are_found_in_the_books() -> None:
    bug = ends(internal_error=1.0)
    tally = Tally(requests=1, unknown=1, choices=1)

    assert list(sum_complaints(ended({}, {}), ended(bug, {}), tally)) == [
        "1 ended by internal_error"
    ]
    assert list(sum_complaints(ended({}, {}), ended(bug, bug), tally))[1:] == [
        "1 ended by internal_error"
    ]
    broken = page(vllmfront__boundary_faults_total={"kind=sink_failures": 1.0})
    assert list(sum_complaints(ended({}, {}), broken, Tally())) == ["an output pipeline failed"]


def test_holdings_are_those_of_the_process() -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        before = holdings(os.getpid())
        with open(os.devnull, "rb"):  # noqa: PTH123 (a descriptor is the point)
            during = holdings(os.getpid())
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        dying = holdings(os.getpid())
        child.wait()
        after = holdings(os.getpid())

    assert during.descriptors == before.descriptors + 1
    assert before.children == after.children + 1
    assert (before.zombies, dying.zombies, after.zombies) == (0, 1, 0)
    assert before.memory > 1 << 20
    assert before.threads >= 1
    assert not is_alive(child.pid)
