"""Where tasks hang, for the log line about what does not end."""

import itertools
import traceback
from collections.abc import Iterator

import trio

_MOST_TASKS = 50
"""More are not written down: there may be one for each connection."""


def describe_task(task: trio.lowlevel.Task) -> str:
    """Write the stack of *task*, and of all tasks below it, which it may be waiting for."""
    lines = list(itertools.islice(_lines(task), _MOST_TASKS + 1))
    return "\n".join([*lines[:_MOST_TASKS], *["and more"] * (len(lines) > _MOST_TASKS)])


def _lines(task: trio.lowlevel.Task) -> Iterator[str]:
    """Write one text a task, from the top."""
    stack = traceback.StackSummary.extract(task.iter_await_frames())
    yield f"task {task.name}:\n{''.join(stack.format()).rstrip()}"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _lines(child)
