# ruff: noqa: ARG001 - a clock is asked for because of its effect

import math

import trio
from trio.testing import MockClock

from vllmfront.supervisor import Shutdown


async def test_both_deadlines_are_set_once(autojump_clock: MockClock) -> None:
    shutdown = Shutdown(budget=10.0, margin=5.0)

    assert shutdown.deadline == shutdown.end == math.inf

    now = trio.current_time()
    shutdown.request("because")
    await trio.sleep(3.0)

    assert (shutdown.deadline - now, shutdown.end - now) == (10.0, 15.0)
    assert shutdown.reason == "because"
    assert not shutdown.hurried.is_set()


async def test_a_second_request_moves_them_to_the_present(autojump_clock: MockClock) -> None:
    shutdown = Shutdown(budget=10.0, margin=5.0)
    shutdown.request("because")
    await trio.sleep(3.0)
    shutdown.request("at last")

    assert shutdown.deadline == trio.current_time()
    assert shutdown.end <= trio.current_time() + 3.0
    assert shutdown.reason == "because"
    assert shutdown.hurried.is_set()


async def test_a_hard_stop_implies_the_soft_one(autojump_clock: MockClock) -> None:
    shutdown = Shutdown(budget=10.0, margin=5.0)
    shutdown.hurry("now")
    await shutdown.hurried.wait()

    assert shutdown.requested.is_set()
    assert shutdown.reason == "now"
