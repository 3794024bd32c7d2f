"""The lifecycle as a plain function, for the command line; what it needs is imported late."""

import functools
from collections.abc import Callable

import trio

from vllmfront.lifecycles._run import freeze, prepare_process
from vllmfront.lifecycles.worker._config import WorkerConfig
from vllmfront.supervisor import open_parent


def run_worker(config: WorkerConfig, reload_log_level: Callable[[], str]) -> int:
    """Serve until told to stop; return the exit status.

    Args:
        config: What to serve, how, and on which descriptors.
        reload_log_level: Reads the log level anew, at SIGHUP; returns what it did, for the log.

    Raises:
        VllmFrontError: It could not start, or could not go on.
    """
    with open_parent() as parent:
        from vllmfront.lifecycles.worker._worker import serve_worker

        prepare_process()
        main = functools.partial(serve_worker, on_loaded=freeze, reload_log_level=reload_log_level)
        trio.run(main, config, parent)
    return 0
