"""What stands in the main process's tree in place of model and API.

::

    routes      answers what is asked of the server as a whole, for all workers
    acceptor    accepts connections, and deals them out
    workers     one_for_one, with a window and a backoff of their own
    └─ worker-N   a process; ready once it has loaded the model's files and answers
    growth      starts another worker when all are busy; with --api-server-count auto alone

They stop in reverse order: connections are answered as long as any worker is.
"""

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from vllmfront.api.http import Listener
from vllmfront.engine import EngineClient, EngineClientConfig
from vllmfront.errors import ConfigurationError
from vllmfront.interprocess import Board
from vllmfront.lifecycles._api import ApiServer
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._facts import Facts
from vllmfront.lifecycles.workers._acceptor import Acceptor
from vllmfront.lifecycles.workers._forwarding import Answering
from vllmfront.lifecycles.workers._growth import Growth
from vllmfront.lifecycles.workers._host import MAIN_PAGE, WorkerHost
from vllmfront.lifecycles.workers._loads import BoardLoads
from vllmfront.lifecycles.workers._process import WorkerProcess
from vllmfront.lifecycles.workers._processors import usable_processors
from vllmfront.lifecycles.workers._scaling import Scaling, most_workers
from vllmfront.lifecycles.workers._service_routes import ServiceRoutes
from vllmfront.supervisor import (
    Backoff,
    ChildSpec,
    Reloads,
    RestartPolicy,
    Shutdown,
    Supervisor,
)

_BACKOFF = Backoff(base=0.5, cap=5.0, reset_after=30.0)


def count_workers(config: ServeConfig) -> int:
    """Return how many workers there may be; 0: one process does everything.

    Raises:
        ConfigurationError: Something was asked for that takes one process.
    """
    asked = config.server.api_server_count
    count = most_workers(usable_processors()) if asked is None else asked
    if count == 1:
        return 0
    return count


def share_engines(engines: EngineClientConfig, config: ServeConfig) -> EngineClientConfig:
    """Return the main process's client for as many workers as *config* asks for.

    Raises:
        ConfigurationError: Something was asked for that takes one process.
    """
    count = count_workers(config)
    if not count:
        return engines
    if not engines.randomize_ids:
        raise ConfigurationError(
            "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION and several workers do not go together: a "
            "request id that two of them were given would end the engine; use --api-server-count 1"
        )
    # Engines that outlive this program would know addresses of workers that nobody keeps.
    board = Board.create(pages=count + 1, ranks=engines.engine_count)
    loads = BoardLoads(board, board.pages[MAIN_PAGE], engines.start_rank)
    return attrs.evolve(engines, workers=count, state_file=None, loads=loads)


@asynccontextmanager
async def open_worker_host(
    config: ServeConfig,
    engines: EngineClientConfig,
    client: EngineClient,
    shutdown: Shutdown,
    reloads: Reloads,
) -> AsyncGenerator[WorkerHost | None]:
    """Hold for the block what all workers need; None where there are none."""
    if client.worker_slots is None:
        yield None
        return
    assert isinstance(engines.loads, BoardLoads)
    with engines.loads.board as board:
        host = WorkerHost(config, engines, client, board, shutdown, first_id=secrets.randbits(32))
        with reloads.offering("workers", host.reload):
            yield host


@attrs.frozen(kw_only=True, eq=False)
class WorkerChildren:
    """Plans the children."""

    host: WorkerHost
    listeners: Sequence[Listener]
    api: ApiServer
    """Makes the routes; it listens nowhere."""

    facts: Facts
    on_loaded: Callable[[], None]
    """Called once, when a worker has loaded the model's files."""

    def plan(self) -> Sequence[ChildSpec]:
        """Return all of them, in the order of start."""
        host, answering = self.host, Answering()
        routes = _Routes(self, answering)
        acceptor = Acceptor(listeners=self.listeners, host=host)
        timeout = host.config.server.shutdown_timeout
        workers = Supervisor(
            "workers",
            [
                WorkerProcess(number=number, host=host, answering=answering).as_child(timeout)
                for number in range(1, host.count + 1)
            ],
            RestartPolicy(
                intensity=5 + host.count, period=120.0 + 10.0 * host.count, backoff=_BACKOFF
            ),
            shutdown=host.shutdown,
            handle=True,
        )
        growth = []
        if host.config.server.api_server_count is None:
            run = Growth(host, Scaling(host.count)).run
            growth = [ChildSpec(name="growth", run=run)]
        return [
            ChildSpec(name="routes", run=routes.run),
            ChildSpec(name="acceptor", run=acceptor.run),
            workers.as_child(),
            *growth,
        ]


@attrs.frozen
class _Routes:
    children: WorkerChildren
    answering: Answering

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Be the body of a child: answers until the last worker has ended."""
        parts = self.children
        async with parts.api.open_routes() as (router, _), trio.open_nursery() as nursery:
            nursery.start_soon(self._note_loaded)
            nursery.start_soon(self._note_end)
            self.answering.handler = ServiceRoutes(own=router, facts=parts.facts, host=parts.host)
            task_status.started()
            await stop.wait()
            self.answering.handler = None
            nursery.cancel_scope.cancel(reason="nobody asks any more")

    async def _note_loaded(self) -> None:
        await self.children.host.loaded.wait()
        self.children.facts.slot.filled = True
        self.children.on_loaded()

    async def _note_end(self) -> None:
        await self.children.host.shutdown.requested.wait()
        self.children.facts.slot.close()
