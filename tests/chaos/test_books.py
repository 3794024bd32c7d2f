import os
import subprocess
from collections.abc import Mapping

import attrs
import pytest

from tests.chaos._books import (
    MEMORY_SLACK,
    Page,
    growth_complaints,
    idle_complaints,
    sum_complaints,
)
from tests.chaos._proc import Holdings, holdings, is_alive

HELD = Holdings(descriptors=30, threads=5, memory=100 << 20, children=2)
IDLE = b'{"server_load":0}'


def page(load: bytes = IDLE, **samples: Mapping[str, float]) -> Page:
    return Page({name.replace("__", ":"): by for name, by in samples.items()}, load, HELD)


def ends(**causes: float) -> Page:
    return page(vllmfront__engine_request_ends_total={f"cause={key}": n for key, n in causes.items()})


def test_idle_books_are_at_zero() -> None:
    assert list(idle_complaints(page(vllm__num_requests_running={"engine=0": 0.0}))) == []
    assert len(list(idle_complaints(page(vllm__num_requests_running={"engine=0": 1.0})))) == 1
    assert len(list(idle_complaints(page(b'{"server_load":1}')))) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"descriptors": 40},
        {"threads": 9},
        {"children": 3},
        {"memory": HELD.memory + MEMORY_SLACK + 1},
    ],
)
def test_growth_is_found(more: dict[str, int]) -> None:
    assert list(growth_complaints(HELD, HELD)) == []
    assert len(list(growth_complaints(HELD, attrs.evolve(HELD, **more)))) == 1


def test_ends_add_up_to_requests() -> None:
    before, after = ends(stop=3.0, length=1.0), ends(stop=10.0, length=4.0)

    assert list(sum_complaints(before, after, least=9, most=10)) == []
    assert len(list(sum_complaints(before, after, least=9, most=9))) == 1
    assert len(list(sum_complaints(before, after, least=11, most=12))) == 1


def test_bugs_are_found_in_the_books() -> None:
    found = list(sum_complaints(ends(), ends(internal_error=1.0), least=0, most=9))

    assert found == ["1 requests ended by internal_error"]


def test_holdings_are_those_of_the_process() -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        before = holdings(os.getpid())
        with open(os.devnull, "rb"):  # noqa: PTH123 (a descriptor is the point)
            during = holdings(os.getpid())
        child.kill()
        child.wait()
        after = holdings(os.getpid())

    assert during.descriptors == before.descriptors + 1
    assert before.children == after.children + 1
    assert before.memory > 1 << 20
    assert before.threads >= 1
    assert not is_alive(child.pid)
