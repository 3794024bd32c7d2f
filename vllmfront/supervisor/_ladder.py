"""How one incarnation is brought to its end: asked, cancelled, and then known to be stuck.

There is no further rung: Trio cannot kill a task. Every wait in here is bounded.
"""

import logging

import trio

from vllmfront.supervisor._child import Child, Incarnation
from vllmfront.supervisor._shutdown import Shutdown
from vllmfront.supervisor._state import RUNNING, ChildState
from vllmfront.supervisor._wait import wait_any

_LOGGER = logging.getLogger(__name__)


async def stop(child: Child, shutdown: Shutdown) -> bool:
    """Stop a child that runs or is being stopped, within its budget and the program's.

    Called again after it was cancelled, it goes on where it was: no budget begins anew.

    Returns:
        Whether it has ended; False: it is stuck. Its state is STOPPING or STUCK.
    """
    incarnation = child.current
    if child.state in RUNNING:
        child.enter(ChildState.STOPPING)
        incarnation.stop_by = trio.current_time() + child.spec.stop_budget
    incarnation.stop.set()
    await _wait_end(incarnation, shutdown)
    if not incarnation.ended.is_set() and not incarnation.scope.cancel_called:
        took = trio.current_time() - (child.since or 0.0)
        _LOGGER.warning("cancelling %s, which did not stop within %.3g s", child.name, took)
    return await _cancel(child, f"{child.name} did not stop in time")


async def cancel(child: Child) -> bool:
    """Cancel a child that has used up its time to start; returns as :func:`stop` does."""
    child.enter(ChildState.STOPPING)
    child.current.stop_by = trio.current_time()
    return await _cancel(child, f"{child.name} was not ready in time")


async def _wait_end(incarnation: Incarnation, shutdown: Shutdown) -> None:
    """Wait for the end until the earlier deadline; the program's may move while we wait."""
    while not incarnation.ended.is_set():
        limit = min(incarnation.stop_by, shutdown.end)
        if limit <= trio.current_time():
            return
        steps = (shutdown.requested, shutdown.hurried)
        moves = [event.wait for event in steps if not event.is_set()]
        with trio.move_on_at(limit):
            await wait_any(incarnation.ended.wait, *moves)


async def _cancel(child: Child, reason: str) -> bool:
    incarnation = child.current
    if not incarnation.ended.is_set():
        if not incarnation.scope.cancel_called:
            incarnation.scope.cancel(reason=reason)
            incarnation.end_by = trio.current_time() + child.spec.cancel_budget
        with trio.move_on_at(incarnation.end_by):
            await incarnation.ended.wait()
    if incarnation.ended.is_set():
        return True
    child.enter(ChildState.STUCK)
    return False
