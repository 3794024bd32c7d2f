"""The process's end when nothing else ends it: Trio cannot kill a task, nor unblock its loop."""

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from vllmfront.supervisor import Shutdown, describe_task

_PATIENCE = 15.0
"""Seconds past the program's end after which a thread ends it the hard way."""

_LAST_WORDS_BUDGET = 1.0
"""Seconds for writing down what did not end, to a stderr that may be stuck as well."""


async def serve_last_resort(shutdown: Shutdown, patience: float = _PATIENCE) -> None:
    """End the process, with status 1, when it runs *patience* seconds longer than it should.

    It tells on stderr what did not end: the tasks of whoever owns the nursery of this one, and
    what the process's threads do.
    """
    nursery = trio.lowlevel.current_task().parent_nursery
    assert nursery is not None
    owner = nursery.parent_task
    await shutdown.requested.wait()
    with _timer(shutdown.end - trio.current_time() + patience, owner):
        await shutdown.hurried.wait()
        with _timer(shutdown.end - trio.current_time() + patience, owner):
            await trio.sleep_forever()


@contextmanager
def _timer(seconds: float, owner: trio.lowlevel.Task) -> Iterator[None]:
    timer = threading.Timer(seconds, _end_process, [owner])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_process(owner: trio.lowlevel.Task) -> None:
    """Say what runs on, then end everything. Runs in a thread of its own."""
    if_stuck = threading.Timer(_LAST_WORDS_BUDGET, os._exit, [1])
    if_stuck.daemon = True
    if_stuck.start()
    try:
        sys.stderr.write(
            "vllmfront has not ended in time, so its process is ended now; please report what "
            f"did not end:\n{describe_task(owner)}\n"
        )
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr)
    finally:
        os._exit(1)
