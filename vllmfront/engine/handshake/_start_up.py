"""How long engines may take to start: together the first time, each by itself later."""

from typing import Protocol

import trio

from vllmfront.engine.handshake._roster import Roster, Step
from vllmfront.errors import StartupFailed


class Starters(Protocol):
    """Who is told of engines that take too long."""

    def engine_overdue(self, rank: int, error: StartupFailed) -> None:
        """Take note that a process of *rank* did not do the next step of its start-up in time."""


async def watch_start_up(roster: Roster, ready_timeout: float) -> None:
    """Return once all ranks have joined for the first time.

    The clock starts anew whenever one of them does a step: they may wait for each other.

    Args:
        roster: Who is expected.
        ready_timeout: Seconds in which some rank must get on.

    Raises:
        StartupFailed: None did.
    """
    for step in roster.steps:
        while missing := roster.missing(step):
            with trio.move_on_after(ready_timeout) as scope:
                await roster.wait_change()
            if scope.cancelled_caught:
                raise _overdue_error(step, missing, ready_timeout)


async def watch_restarts(roster: Roster, ready_timeout: float, starters: Starters) -> None:
    """Tell *starters* of each process that takes *ready_timeout* seconds for a step, for ever."""
    while True:
        with trio.move_on_at(roster.next_due(ready_timeout)):
            await roster.wait_change()
        for rank, step in roster.take_overdue(trio.current_time(), ready_timeout).items():
            starters.engine_overdue(rank, _overdue_error(step, [rank], ready_timeout))


def _overdue_error(step: Step, ranks: list[int], ready_timeout: float) -> StartupFailed:
    """Return the error that says who has not done *step* in *ready_timeout* seconds."""
    who = ", ".join(map(str, ranks))
    return StartupFailed(
        f"no {step.value} from engine {who} within {ready_timeout:g} seconds; "
        "look at the engine's log, or raise --engine-ready-timeout-secs"
    )
