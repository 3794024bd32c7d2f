"""Starts another worker when those that run are busy: ``--api-server-count auto``."""

import logging

import attrs
import trio

from vllmfront.interprocess import Cell
from vllmfront.lifecycles.workers._host import WorkerHost
from vllmfront.lifecycles.workers._scaling import BUSY_SECONDS, BUSY_SHARE, Scaling

_LOGGER = logging.getLogger(__name__)

_LOOK_INTERVAL = 1.0
"""Seconds between two looks at how much processor time workers have used."""


@attrs.frozen
class Growth:
    """Looks at the board now and then."""

    host: WorkerHost
    scaling: Scaling

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child."""
        task_status.started()
        pages = self.host.board.pages
        while self.scaling.wanted < self.scaling.most:
            with trio.move_on_after(_LOOK_INTERVAL):
                await stop.wait()
                return
            used = {number: pages[number][Cell.CPU] for number in self.host.serving}
            if self.scaling.look(used, trio.current_time()):
                _LOGGER.info(
                    "all workers have used more than %d %% of a processor each for %g s: starting "
                    "worker %d of at most %d",
                    100 * BUSY_SHARE,
                    BUSY_SECONDS,
                    self.scaling.wanted,
                    self.scaling.most,
                )
                self.host.want(self.scaling.wanted)
        await stop.wait()
