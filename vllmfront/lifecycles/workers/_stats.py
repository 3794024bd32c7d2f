"""The periodic line about the engines' load, of what all workers have counted."""

import logging

import attrs
import trio

from vllmfront.api.metrics import StatsReporter
from vllmfront.lifecycles.workers._host import WorkerHost
from vllmfront.lifecycles.workers._service_routes import newest_process

_LOGGER = logging.getLogger(__name__)


@attrs.frozen
class ServiceStats:
    """Logs how busy the engines are, from when they first report."""

    host: WorkerHost
    interval: float

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child."""
        reporter = StatsReporter(trio.current_time())
        host = self.host
        task_status.started()
        while not stop.is_set():
            with trio.move_on_after(self.interval):
                await stop.wait()
                return
            await host.counts.ask(host.lines)
            own = host.client.metrics.snapshot().ranks
            if own:
                ranks = host.counts.loads(own, newest_process(host))
                line = reporter.report(ranks, trio.current_time())
                _LOGGER.log(line.level, line.text)
