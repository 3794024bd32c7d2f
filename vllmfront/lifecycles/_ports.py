"""One port an engine, and one that tells of all of them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio

from vllmfront.api.http import (
    Handler,
    HttpConfig,
    ListenConfig,
    Listener,
    duplicate_listeners,
    open_listeners,
    serve_http,
)
from vllmfront.api.routes import PortOverview, PortPins
from vllmfront.lifecycles._engine_config import EngineConfig
from vllmfront.lifecycles._facts import Facts
from vllmfront.lifecycles._one_error import one_error


@attrs.frozen(kw_only=True)
class RankPorts:
    """Which port is which engine's."""

    listeners: Sequence[Listener]
    """Of all of them."""

    ranks: Mapping[int, int]
    """By port."""

    overview: Sequence[Listener]
    """Where the health of all is told."""

    def around(self, routes: Handler, facts: Facts) -> Handler:
        """Return what stands before *routes*."""
        seen = {rank: attrs.evolve(facts, needed=(rank,)) for rank in self.ranks.values()}
        return PortPins(routes, self.ranks, seen)


@asynccontextmanager
async def open_rank_ports(host: str, port: int, engine: EngineConfig) -> AsyncGenerator[RankPorts]:
    """Listen for the block on as many ports as there are engines on this node, and on one more.

    Raises:
        ConfigurationError: A port cannot be had.
    """
    async with AsyncExitStack() as stack:

        async def listen(number: int) -> list[Listener]:
            config = ListenConfig(host=host, port=number)
            return await stack.enter_async_context(open_listeners(config))

        found: list[Listener] = []
        ranks: dict[int, int] = {}
        for place, rank in enumerate(engine.local_ranks):
            opened = await listen(port + place if port else 0)
            found += opened
            ranks |= {listener.socket.getsockname()[1]: rank for listener in opened}
        overview = await listen(engine.supervisor_port)
        yield RankPorts(listeners=found, ranks=ranks, overview=overview)


@attrs.frozen(kw_only=True)
class OverviewServer:
    """Tells the health of all engines of this node; the body of a child."""

    ports: RankPorts
    facts: Facts
    http: HttpConfig

    async def run(
        self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Answer until stopped.

        Raises:
            ConfigurationError: Certificates are unusable.
        """
        every = attrs.evolve(self.facts, needed=tuple(self.ports.ranks.values()))
        with one_error(), duplicate_listeners(self.ports.overview) as listeners:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve_http, listeners, PortOverview(every), self.http)
                task_status.started()
                await stop.wait()
                nursery.cancel_scope.cancel(reason="the server has ended")
