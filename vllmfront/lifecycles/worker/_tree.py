"""The supervision tree of ``frontend``: which children there are, and in which order.

::

    root         one_for_one, no restarts: what fails here ends the program
    ├─ engines   waits for the loss of the supervisor's engines
    ├─ api       up at once, answers 503 until engines and model are there
    ├─ model     loads the files, once; after the API is up, which loading would delay
    └─ stats     the periodic line
"""

import logging
import os
from collections.abc import Callable, Sequence

import attrs

from vllmfront.api.http import Listener
from vllmfront.control import ControlPlane
from vllmfront.engine import EngineClient
from vllmfront.environment import positive_number
from vllmfront.lifecycles._api import FLUSH_BUDGET, ApiServer
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._model import DrainingSlot, ModelLoader
from vllmfront.lifecycles._stats import DEFAULT_INTERVAL, StatsLog
from vllmfront.lifecycles.worker._engines import EngineWatch
from vllmfront.supervisor import (
    ChildSpec,
    Reloads,
    Restart,
    RestartPolicy,
    Shutdown,
    Supervisor,
    SupervisorSnapshot,
)

_LOGGER = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Parts:
    """What the children work with; it is there before them, and ends after them."""

    settings: ServeConfig
    listener: Listener
    client: EngineClient
    control: ControlPlane
    engines: EngineWatch
    shutdown: Shutdown
    reloads: Reloads
    on_loaded: Callable[[], None]
    """Called once, when the model's files have been read."""


def plan_tree(parts: Parts) -> Supervisor:
    """Return the root, which starts its children in order and stops them in reverse."""

    def snapshot() -> SupervisorSnapshot:
        return root.snapshot()

    slot = DrainingSlot()
    children = [
        ChildSpec(name="engines", run=parts.engines.run, restart=Restart.TRANSIENT),
        _api(parts, slot, snapshot),
        _model(parts, slot),
        *_stats(parts),
    ]
    root = Supervisor("root", children, RestartPolicy(intensity=0), shutdown=parts.shutdown)
    return root


def _model(parts: Parts, slot: DrainingSlot) -> ChildSpec:
    loader = ModelLoader(
        config=parts.settings, client=parts.client, slot=slot, on_loaded=parts.on_loaded
    )
    return ChildSpec(name="model", run=loader.run, restart=Restart.TRANSIENT)


def _api(parts: Parts, slot: DrainingSlot, snapshot: Callable[[], SupervisorSnapshot]) -> ChildSpec:
    api = ApiServer(
        config=parts.settings,
        listeners=[parts.listener],
        client=parts.client,
        control=parts.control,
        slot=slot,
        shutdown=parts.shutdown,
        reloads=parts.reloads,
        refuse=parts.listener.close,
        on_server=lambda _: _LOGGER.info("accepting connections on %s", parts.listener.name),
        tree=snapshot,
    )
    stop_budget = parts.settings.server.shutdown_timeout + 2 * FLUSH_BUDGET
    return ChildSpec(name="api", run=api.run, stop_budget=stop_budget)


def _stats(parts: Parts) -> Sequence[ChildSpec]:
    if not parts.settings.server.log_stats:
        return ()
    interval = positive_number(os.environ, "VLLM_LOG_STATS_INTERVAL", DEFAULT_INTERVAL)
    stats = StatsLog(client=parts.client, interval=interval)
    return [ChildSpec(name="stats", run=stats.run, restart=Restart.TRANSIENT)]
