"""All developer routes, as handlers; who adds another adds it here."""

from collections.abc import Iterator, Mapping

from vllmfront.api.developer._pauses import PauseRoutes
from vllmfront.api.developer._route import DeveloperRoute
from vllmfront.api.developer._sync import SyncRoute
from vllmfront.api.developer._weights import WeightRoutes
from vllmfront.api.http import Handler
from vllmfront.control import ControlPlane
from vllmfront.environment import nonzero

DEVELOPER_PATHS = frozenset(
    {
        *("/pause", "/renew_pause", "/resume", "/is_paused", "/abort_requests"),
        *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine"),
        *("/start_weight_update", "/start_draft_weight_update", "/update_weights"),
        *("/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker"),
        *("/get_world_size", "/v1/weights/sync"),
    }
)
"""They need the admin key, where there is one."""


ENABLED_BY = "VLLM_SERVER_DEV_MODE"
"""The environment variable without which the routes do not exist."""


class DeveloperRoutes:
    """Iterate for method, path and handler; there are none unless *environ* opens their gate."""

    def __init__(self, plane: ControlPlane, environ: Mapping[str, str]) -> None:
        self._plane = plane
        self._open = nonzero(environ, ENABLED_BY)

    def __iter__(self) -> Iterator[tuple[str, str, Handler]]:
        if not self._open:
            return
        for routes in (PauseRoutes(self._plane), WeightRoutes(self._plane)):
            for method, path, answer in routes:
                yield method, path, DeveloperRoute(answer)
        yield "POST", "/v1/weights/sync", SyncRoute(self._plane)
