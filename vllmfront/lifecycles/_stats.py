"""The periodic line about the engines' load."""

import logging

import attrs
import trio

from vllmfront.api.metrics import StatsReporter
from vllmfront.engine import EngineClient

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
