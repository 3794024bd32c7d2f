"""The parts of a worker, and what it tells of them."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from vllmfront.api.edge import ADMIN_PATHS
from vllmfront.api.http import HandedListener, Handler, HttpServer
from vllmfront.api.metrics import HttpMetrics, collect, pack
from vllmfront.control import ControlPlane
from vllmfront.engine import EngineClient, EngineState
from vllmfront.errors import EngineStalled, VllmFrontError
from vllmfront.interprocess import Board, Cell, Line, Page
from vllmfront.lifecycles._api import FLUSH_BUDGET, ApiServer
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._model import DrainingSlot, ModelLoader, served_names
from vllmfront.lifecycles.workers._beat import Beat
from vllmfront.lifecycles.workers._counts import pack_loads
from vllmfront.lifecycles.workers._forwarding import Forwarding
from vllmfront.lifecycles.workers._messages import (
    Accepting,
    AdapterIdle,
    Counts,
    EngineSilent,
    Inside,
    Leaving,
    Serving,
)
from vllmfront.lifecycles.workers._orders import Orders
from vllmfront.lifecycles.workers._state import Mirror
from vllmfront.supervisor import (
    ChildSpec,
    Restart,
    RestartPolicy,
    Shutdown,
    Supervisor,
    SupervisorSnapshot,
)


@attrs.frozen
class BoardCounts:
    """What all processes have let in, for the gate of this one."""

    board: Board
    page: Page

    def publish_choices(self, own: int) -> int:
        """Say how many choices are in here; return the sum over all processes."""
        return self.board.total_after(self.page, Cell.CHOICES, own)

    def publish_tokens(self, own: int) -> int:
        """Say how many prompt tokens wait here; return the sum over all processes."""
        return self.board.total_after(self.page, Cell.QUEUED_TOKENS, own)


@attrs.define(kw_only=True, eq=False)
class Worker:
    """What the children of a worker work with."""

    number: int
    config: ServeConfig
    client: EngineClient
    control: ControlPlane
    board: Board
    line: Line
    orders: Orders
    shutdown: Shutdown
    on_loaded: Callable[[], None]
    mirror: Mirror = attrs.field(init=False)
    slot: DrainingSlot = attrs.field(factory=DrainingSlot)
    http: HttpMetrics = attrs.field(factory=HttpMetrics)
    server: HttpServer | None = None
    _told: bool = False
    """Whether main knows that this worker serves."""

    def __attrs_post_init__(self) -> None:
        self.mirror = Mirror(self.client)

    @property
    def page(self) -> Page:
        """This worker's part of the board."""
        return self.board.pages[self.number]

    @contextmanager
    def listening(self, descriptor: int) -> Iterator[HandedListener]:
        """Take connections out of *descriptor* for the block."""
        end = socket.socket(fileno=descriptor)
        end.set_inheritable(False)
        end.settimeout(0)
        listener = HandedListener(end, "the main process", on_taken=self._count_taken)
        try:
            yield listener
        finally:
            listener.close()

    def plan_tree(self, listener: HandedListener) -> Supervisor:
        """Return the supervisor of all parts."""

        def snapshot() -> SupervisorSnapshot:
            return root.snapshot()

        children = [self._model(), self._api(listener, snapshot), self._beat()]
        root = Supervisor("worker", children, RestartPolicy(intensity=0), shutdown=self.shutdown)
        return root

    def note_loss(self, rank: int, error: VllmFrontError) -> None:
        """Tell main of an engine that is there and does not answer: only we can know."""
        if isinstance(error, EngineStalled):
            incarnation = next(one.incarnation for one in self.orders.ranks if one.rank == rank)
            self.line.tell(EngineSilent(rank, incarnation, str(error)))

    def note_idle(self, lora_id: int) -> None:
        """Tell main that it may let engines forget an adapter, as far as we go."""
        self.line.tell(AdapterIdle(lora_id))

    def counts(self) -> Counts:
        """Return all that this worker has counted."""
        snapshot = self.client.metrics.snapshot()
        families = collect(snapshot, self.http, model_name=served_names(self.config)[0])
        return Counts(pack(families), pack_loads(snapshot.ranks))

    def inside(self) -> Inside:
        """Return how this worker is."""
        engines = self.client.snapshot()
        return Inside(
            requests=engines.requests,
            waiting=engines.waiting,
            engine_requests=engines.engine_requests,
            pending_calls=engines.pending_calls,
            resent_requests=engines.resent_requests,
            continued_requests=engines.continued_requests,
            in_flight={rank.rank: rank.in_flight for rank in engines.ranks},
            seconds_since_output={
                rank.rank: rank.seconds_since_output
                for rank in engines.ranks
                if rank.seconds_since_output is not None
            },
            tasks=trio.lowlevel.current_statistics().tasks_living,
            load=self.slot.load,
            connections=0 if self.server is None else self.server.statistics().connections_open,
        )

    def _model(self) -> ChildSpec:
        def note_loaded() -> None:
            self.on_loaded()
            self._tell_serving()

        loader = ModelLoader(
            config=self.config, client=self.client, slot=self.slot, on_loaded=note_loaded
        )
        return ChildSpec(name="model", run=loader.run, restart=Restart.TRANSIENT)

    def _api(self, listener: HandedListener, tree: Callable[[], SupervisorSnapshot]) -> ChildSpec:
        # What is hidden from clients is known to main, for which this worker answers as well.
        listen = attrs.evolve(self.config.listen, admin=None)
        api = ApiServer(
            config=attrs.evolve(self.config, listen=listen),
            listeners=[listener],
            client=self.client,
            control=self.control,
            slot=self.slot,
            shutdown=self.shutdown,
            reloads=self.orders.reloads,
            refuse=self._refuse,
            on_server=self._attach_server,
            tree=tree,
            metrics=self.http,
            service=BoardCounts(self.board, self.page),
            around_routes=self._around_routes,
        )
        stop_budget = self.config.server.shutdown_timeout + 2 * FLUSH_BUDGET
        return ChildSpec(name="api", run=api.run, stop_budget=stop_budget)

    def _beat(self) -> ChildSpec:
        def refresh() -> None:
            self.http.inference.gate()  # which says on the board what it counts
            self._tell_serving()

        beat = Beat(
            page=self.page,
            line=self.line,
            counts=self.counts,
            refresh=refresh,
            beside=self.mirror.serve,
        )
        return ChildSpec(name="beat", run=beat.run)

    def _around_routes(self, routes: Handler) -> Handler:
        self.orders.answering.handler = routes
        hidden = () if self.config.listen.admin is None else ADMIN_PATHS
        return Forwarding(routes, self.line, hidden=hidden)

    def _tell_serving(self) -> None:
        """Say so once this worker can do what the others can."""
        if self._told or not self.slot.filled:
            return
        if self.client.state is EngineState.READY or not self.orders.engines_serve:
            self._told = True
            self.line.tell(Serving())

    def _attach_server(self, server: HttpServer) -> None:
        self.server = server
        server.on_end = self._count_closed
        self.orders.counts, self.orders.inside = self.counts, self.inside
        self.line.tell(Accepting())

    def _refuse(self) -> None:
        """Take no connections any more: nobody would answer."""
        self.line.tell(Leaving("nobody would answer any more"))

    def _count_taken(self) -> None:
        self.page[Cell.TAKEN] += 1

    def _count_closed(self) -> None:
        self.page[Cell.CLOSED] += 1
