"""Lifecycles as plain functions, for the command line.

What they import takes half a second; a usage error must not wait for it, hence it comes late.
"""

import functools
import gc
import logging
from collections.abc import Callable

import trio

from vllmfront.lifecycles._config import ServeConfig

_LOGGER = logging.getLogger(__name__)

_GC_THRESHOLDS = (20_000, 50, 100)
"""Objects, and generations: a busy server makes many that die young, and hardly any cycles."""


def run_serve(config: ServeConfig, reload_log_level: Callable[[], str]) -> int:
    """Serve until told to stop; return the exit status.

    Args:
        config: What to serve, and how.
        reload_log_level: Reads the log level anew, at SIGHUP; returns what it did, for the log.

    Raises:
        VllmFrontError: It could not start, or could not go on.
    """
    from vllmfront.lifecycles._serve import serve

    prepare_process()
    trio.run(functools.partial(serve, config, on_loaded=freeze, reload_log_level=reload_log_level))
    return 0


def run_headless(config: ServeConfig, reload_log_level: Callable[[], str]) -> int:
    """Run engines without a frontend until told to stop; arguments and errors as ``run_serve``."""
    from vllmfront.lifecycles._headless import serve_headless

    trio.run(functools.partial(serve_headless, config, reload_log_level=reload_log_level))
    return 0


def prepare_process() -> None:
    """Raise the limits and tune the interpreter for many connections."""
    from vllmfront.api.http import raise_descriptor_limit

    _LOGGER.debug("at most %d files may be open", raise_descriptor_limit())
    gc.set_threshold(*_GC_THRESHOLDS)


def freeze() -> None:
    """Take what start-up has built out of the collector's sight: it stays."""
    gc.collect()
    gc.freeze()
