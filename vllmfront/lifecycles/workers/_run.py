"""A worker as a plain function, for the command line; what it needs is imported late."""

from collections.abc import Callable

import trio

from vllmfront.lifecycles._run import freeze, prepare_process

SetUpLog = Callable[[str | None], Callable[[], str]]
"""Sets the log's level from that file, if one is named; returns what reads it anew."""


def run_api_worker(set_up_log: SetUpLog) -> int:
    """Serve until the main process says that it is over; return the exit status.

    Args:
        set_up_log: Called once it is known where the log level comes from.

    Raises:
        VllmFrontError: It could not start, or could not go on.
    """
    from vllmfront.lifecycles.workers._worker import serve_worker

    prepare_process()
    trio.run(serve_worker, set_up_log, freeze)
    return 0
