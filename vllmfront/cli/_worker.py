"""``vllmfront worker``: one of several processes that serve clients; ``serve`` starts it."""

import os
from collections.abc import Callable, Sequence

from vllmfront.cli._errors import UsageError
from vllmfront.cli._logging import LogLevel, set_up_logging
from vllmfront.lifecycles.workers import run_api_worker


def run(words: Sequence[str]) -> int:
    """Serve until the main process says that it is over; return the exit status.

    Raises:
        UsageError: There were words: all that a worker needs to know comes from the main process.
        VllmFrontError: It could not start, or could not go on.
    """
    if words:
        raise UsageError("workers are started by `vllmfront serve --api-server-count N`")
    set_up_logging(os.environ, LogLevel(os.environ))
    return run_api_worker(_set_up_level)


def _set_up_level(file: str | None) -> Callable[[], str]:
    level = LogLevel(os.environ, file)
    level.set_up()
    return level.reload
