"""Where tasks hang, for the log line about a child that does not end."""

import traceback
from collections.abc import Iterator

import trio


def describe_task(task: trio.lowlevel.Task) -> str:
    """Write the stack of *task*, and of all tasks below it, which it may be waiting for."""
    return "\n".join(_lines(task)).rstrip()


def _lines(task: trio.lowlevel.Task) -> Iterator[str]:
    yield f"task {task.name}:"
    yield "".join(traceback.StackSummary.extract(task.iter_await_frames()).format()).rstrip()
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _lines(child)
