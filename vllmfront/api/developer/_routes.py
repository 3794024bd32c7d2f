"""All routes that change the engines' state, as handlers; who adds another adds it here."""

from collections.abc import Iterable, Iterator, Mapping

from vllmfront.api.developer._deployment import DeploymentRoutes
from vllmfront.api.developer._engines import EngineRoutes
from vllmfront.api.developer._information import Configuration, InformationRoute
from vllmfront.api.developer._pauses import PauseRoutes
from vllmfront.api.developer._profiling import ProfileRoutes
from vllmfront.api.developer._route import Answer, DeveloperRoute
from vllmfront.api.developer._sleep import SleepRoutes
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
        *("/sleep", "/wake_up", "/release_kv_cache_memory", "/is_sleeping"),
        *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc"),
        *("/server_info", "/start_profile", "/stop_profile"),
        *("/kv_event_sources", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
    }
)
"""They need the admin key, where there is one."""


ENABLED_BY = "VLLM_SERVER_DEV_MODE"
"""The environment variable without which the routes do not exist."""


class DeveloperRoutes:
    """Iterate for method, path and handler; most exist only where *environ* opens their gate."""

    def __init__(
        self,
        plane: ControlPlane,
        environ: Mapping[str, str],
        *,
        configuration: Configuration = dict,
        profiler: bool = False,
    ) -> None:
        """Make the handlers.

        Args:
            plane: Where orders go.
            environ: Opens the gate, and is told to operators.
            configuration: Of the server, for operators.
            profiler: Whether the engines have one.
        """
        self._plane = plane
        self._environ = environ
        self._configuration = configuration
        self._profiler = profiler

    def __iter__(self) -> Iterator[tuple[str, str, Handler]]:
        for routes in self._groups():
            for method, path, answer in routes:
                yield method, path, DeveloperRoute(answer)
        if nonzero(self._environ, ENABLED_BY):
            yield "POST", "/v1/weights/sync", SyncRoute(self._plane)

    def _groups(self) -> Iterator[Iterable[tuple[str, str, Answer]]]:
        plane = self._plane
        yield DeploymentRoutes(plane.client)
        if self._profiler:
            yield ProfileRoutes(plane)
        if nonzero(self._environ, ENABLED_BY):
            yield PauseRoutes(plane)
            yield WeightRoutes(plane)
            yield SleepRoutes(plane)
            yield EngineRoutes(plane)
            yield InformationRoute(self._configuration, self._environ)
