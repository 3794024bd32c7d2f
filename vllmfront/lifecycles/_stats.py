"""The periodic line about the engines' load."""

import logging
import os
from collections.abc import Mapping

import attrs
import trio

from vllmfront.api.metrics import StatsReporter
from vllmfront.engine import EngineClient
from vllmfront.errors import ConfigurationError

_LOGGER = logging.getLogger(__name__)

DEFAULT_INTERVAL = 10.0
"""Seconds between two lines."""


@attrs.frozen(kw_only=True)
class StatsLog:
    """Logs how busy the engines are, from when they first report."""

    client: EngineClient
    interval: float

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child."""
        reporter = StatsReporter(trio.current_time())
        task_status.started()
        while not stop.is_set():
            with trio.move_on_after(self.interval):
                await stop.wait()
                return
            ranks = self.client.metrics.snapshot().ranks
            if ranks:
                line = reporter.report(ranks, trio.current_time())
                _LOGGER.log(line.level, line.text)


def stats_interval(environ: Mapping[str, str] = os.environ) -> float:
    """Read how often the line comes.

    Raises:
        ConfigurationError: The variable is no positive number.
    """
    text = environ.get("VLLM_LOG_STATS_INTERVAL")
    if not text:
        return DEFAULT_INTERVAL
    try:
        interval = float(text)
    except ValueError:
        interval = 0.0
    if not 0.0 < interval < float("inf"):
        raise ConfigurationError(
            f"VLLM_LOG_STATS_INTERVAL must be a positive number of seconds, not {text!r}"
        )
    return interval
