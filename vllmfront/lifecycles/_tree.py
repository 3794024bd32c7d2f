"""The supervision tree of ``serve``: which children there are, in which order, with what policy.

::

    root            one_for_one, no restarts: what fails here ends the program
    ├─ engine       a supervisor of its own; absent where engines are external
    ├─ predecessor  keeps us from stopping the engine under the process before us, if there is one
    ├─ model        loads the files, once
    ├─ api          up at once, answers 503 until engine and model are there; where several
    │               processes serve, what ``workers/_children.py`` tells is in place of both
    ├─ stats        the periodic line
    └─ service-report   tells a service manager, if there is one, how the server does
"""

import os
from collections.abc import Callable, Sequence

import attrs
import trio

from vllmfront.api.http import Handler, Listener
from vllmfront.control import ControlPlane
from vllmfront.engine import EngineClient
from vllmfront.environment import positive_number
from vllmfront.lifecycles._admin import AdminServer
from vllmfront.lifecycles._api import FLUSH_BUDGET, ApiServer, http_config
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._ending import Ending
from vllmfront.lifecycles._engine import ManagedEngine
from vllmfront.lifecycles._engine_tree import supervised_engines
from vllmfront.lifecycles._facts import Facts
from vllmfront.lifecycles._generation import Generation, PredecessorHold
from vllmfront.lifecycles._model import DrainingSlot, LoadedModel, ModelLoader
from vllmfront.lifecycles._ports import OverviewServer, RankPorts
from vllmfront.lifecycles._service import Service, ServiceReport
from vllmfront.lifecycles._stats import DEFAULT_INTERVAL, StatsLog
from vllmfront.lifecycles._units import EngineUnit
from vllmfront.lifecycles.workers import ServiceRoutes, ServiceStats, WorkerChildren, WorkerHost
from vllmfront.supervisor import (
    ChildSpec,
    Restart,
    RestartPolicy,
    Shutdown,
    Supervisor,
    SupervisorSnapshot,
)


@attrs.frozen(kw_only=True)
class Parts:
    """What the children work with; it is there before them, and ends after them."""

    config: ServeConfig
    listeners: Sequence[Listener]
    admin_listeners: Sequence[Listener]
    client: EngineClient
    control: ControlPlane
    shutdown: Shutdown
    service: Service
    generation: Generation
    units: Sequence[EngineUnit]
    """The processes that run engines here."""

    host: WorkerHost | None
    """What workers need, where there are any."""

    ports: RankPorts | None
    """Which port is which engine's, where each has its own."""

    preloaded: LoadedModel | None
    """The model's files, where they were read before a process was replaced."""

    on_loaded: Callable[[], None]
    """Called once, when the model's files have been read."""


def plan_tree(parts: Parts) -> Supervisor:
    """Return the root, which starts its children in order and stops them in reverse."""

    def snapshot() -> SupervisorSnapshot:
        return root.snapshot()

    slot = DrainingSlot()
    loaded = trio.Event()
    api = _api(parts, slot, snapshot)
    children = [
        *_engine(parts),
        *_predecessor_hold(parts),
        *_overview(parts, slot, snapshot),
        *_admin(parts, api),
        *_front(parts, slot, loaded, api),
        *_stats(parts),
        *_service_report(parts, slot, loaded, snapshot),
    ]
    root = Supervisor("root", children, RestartPolicy(intensity=0), shutdown=parts.shutdown)
    return root


def _engine(parts: Parts) -> Sequence[ChildSpec]:
    config, ending = parts.config, Ending()
    engines = [
        ManagedEngine(
            model=config.model.model,
            config=config.engine,
            unit=unit,
            client=parts.client,
            shutdown=parts.shutdown,
            custody=parts.generation.custody[unit.name],
            socket_files=parts.generation.socket_files,
            ending=ending,
        )
        for unit in parts.units
    ]
    return [supervised_engines(engines, config.engine.restart, parts.shutdown)] if engines else ()


def _predecessor_hold(parts: Parts) -> Sequence[ChildSpec]:
    """It stops before the engine, which the process before this one may still need."""
    if parts.generation.predecessor is None:
        return ()
    hold = PredecessorHold(parts.generation.predecessor, parts.shutdown)
    budget = parts.config.server.shutdown_timeout + 2 * FLUSH_BUDGET
    return [
        ChildSpec(name="predecessor", run=hold.run, restart=Restart.TEMPORARY, stop_budget=budget)
    ]


def _overview(
    parts: Parts, slot: DrainingSlot, snapshot: Callable[[], SupervisorSnapshot]
) -> Sequence[ChildSpec]:
    """It tells that the server drains, so it is stopped after that."""
    if parts.ports is None:
        return ()
    http = http_config(parts.config.server, os.environ)
    overview = OverviewServer(ports=parts.ports, facts=_facts(parts, slot, snapshot), http=http)
    return [ChildSpec(name="overview", run=overview.run)]


def _front(
    parts: Parts,
    slot: DrainingSlot,
    loaded: trio.Event,
    api: ApiServer,
) -> Sequence[ChildSpec]:
    """Return what answers clients: here, or in other processes."""

    def note_loaded() -> None:
        loaded.set()
        parts.on_loaded()

    if parts.host is None:
        stop_budget = parts.config.server.shutdown_timeout + 2 * FLUSH_BUDGET
        return [
            _model(parts, slot, note_loaded),
            ChildSpec(name="api", run=api.run, stop_budget=stop_budget),
        ]
    return WorkerChildren(
        host=parts.host,
        listeners=parts.listeners,
        api=api,
        facts=api.facts,
        on_loaded=note_loaded,
    ).plan()


def _admin(parts: Parts, api: ApiServer) -> Sequence[ChildSpec]:
    """It answers operators while the server drains, so it is stopped after that."""
    host = parts.host
    if not parts.admin_listeners:
        return ()

    def around(routes: Handler) -> Handler:
        return routes if host is None else ServiceRoutes(own=routes, facts=api.facts, host=host)

    admin = AdminServer(
        config=parts.config,
        listeners=parts.admin_listeners,
        control=parts.control,
        facts=api.facts,
        metrics=api.metrics,
        on_server=parts.generation.attach_admin,
        around_routes=around,
    )
    return [ChildSpec(name="admin", run=admin.run)]


def _facts(parts: Parts, slot: DrainingSlot, snapshot: Callable[[], SupervisorSnapshot]) -> Facts:
    return Facts(
        config=parts.config,
        client=parts.client,
        slot=slot,
        shutdown=parts.shutdown,
        tree=snapshot,
        started=trio.current_time(),
    )


def _model(parts: Parts, slot: DrainingSlot, on_loaded: Callable[[], None]) -> ChildSpec:
    loader = ModelLoader(
        config=parts.config,
        client=parts.client,
        slot=slot,
        on_loaded=on_loaded,
        preloaded=parts.preloaded,
    )
    return ChildSpec(name="model", run=loader.run, restart=Restart.TRANSIENT)


def _api(parts: Parts, slot: DrainingSlot, snapshot: Callable[[], SupervisorSnapshot]) -> ApiServer:
    def refuse() -> None:
        for listener in parts.listeners:
            listener.close()

    facts = _facts(parts, slot, snapshot)

    def around(routes: Handler) -> Handler:
        return routes if parts.ports is None else parts.ports.around(routes, facts)

    return ApiServer(
        config=parts.config,
        listeners=parts.listeners,
        client=parts.client,
        control=parts.control,
        slot=slot,
        shutdown=parts.shutdown,
        reloads=parts.service.reloads,
        refuse=refuse,
        on_server=parts.generation.attach_server,
        tree=snapshot,
        around_routes=around,
    )


def _stats(parts: Parts) -> Sequence[ChildSpec]:
    if not parts.config.server.log_stats:
        return ()
    interval = positive_number(os.environ, "VLLM_LOG_STATS_INTERVAL", DEFAULT_INTERVAL)
    if parts.host is None:
        run = StatsLog(client=parts.client, interval=interval).run
    else:
        run = ServiceStats(parts.host, interval).run
    return [ChildSpec(name="stats", run=run, restart=Restart.TRANSIENT)]


def _service_report(
    parts: Parts,
    slot: DrainingSlot,
    loaded: trio.Event,
    snapshot: Callable[[], SupervisorSnapshot],
) -> Sequence[ChildSpec]:
    """It is the last to start, when all others are ready, and the first to learn of the end."""
    if not parts.service.notifier.enabled:
        return ()
    facts = _facts(parts, slot, snapshot)

    def describe() -> str:
        health = facts.health()
        return f"{health.state.value}: {health.reason}"

    report = ServiceReport(
        notifier=parts.service.notifier,
        wait_state=parts.client.wait_state,
        loaded=loaded,
        shutdown=parts.shutdown,
        describe=describe,
    )
    return [ChildSpec(name="service-report", run=report.run)]
