"""``serve --api-server-count N``: several processes that serve clients, and one that runs them.

The main process (``_children`` and what it names) owns listeners, engines and the handshake; a
worker (``_worker``, ``_inside``) answers clients. ``_messages`` is what they say to each other.
"""

from vllmfront.lifecycles.workers._children import (
    WorkerChildren,
    open_worker_host,
    share_engines,
)
from vllmfront.lifecycles.workers._host import WorkerHost
from vllmfront.lifecycles.workers._run import run_api_worker
from vllmfront.lifecycles.workers._service_routes import ServiceRoutes
from vllmfront.lifecycles.workers._stats import ServiceStats

__all__ = [
    "ServiceRoutes",
    "ServiceStats",
    "WorkerChildren",
    "WorkerHost",
    "open_worker_host",
    "run_api_worker",
    "share_engines",
]
