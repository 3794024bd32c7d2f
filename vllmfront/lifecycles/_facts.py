"""What the server tells operators about itself."""

from collections.abc import Callable, Collection, Sequence

import attrs
import trio

from vllmfront.api.routes import HealthReport, SupervisionReport
from vllmfront.engine import ClientSnapshot, EngineClient, LoraRequest, MetricsSnapshot
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._health import Draining, assess, needing
from vllmfront.lifecycles._model import DrainingSlot, served_names
from vllmfront.supervisor import Shutdown, SupervisorSnapshot


@attrs.frozen(kw_only=True)
class Facts:
    """Reads everything anew each time: nothing here can be out of date."""

    config: ServeConfig
    client: EngineClient
    slot: DrainingSlot
    shutdown: Shutdown
    tree: Callable[[], SupervisorSnapshot]
    started: float
    """When the server started, by the event loop's clock."""

    needed: Collection[int] | None = None
    """Engines that all have to serve; None: any will do."""

    def health(self) -> HealthReport:
        """Sum up what a request sent now may expect."""
        return self._health(self.client.snapshot())

    def supervision(self) -> SupervisionReport:
        """Show what runs inside."""
        engines, tree = self.client.snapshot(), self.tree()
        return SupervisionReport(
            health=self._health(engines),
            tree=tree,
            engines=engines,
            tasks=trio.lowlevel.current_statistics().tasks_living,
        )

    def _health(self, engines: ClientSnapshot) -> HealthReport:
        return assess(
            engines if self.needed is None else needing(engines, self.needed),
            now=trio.current_time(),
            started=self.started,
            loaded=self.slot.filled,
            draining=self._draining(),
        )

    def _draining(self) -> Draining | None:
        since = self.slot.closed_at
        if since is None:
            return None
        return Draining(reason=self.shutdown.reason or "a part of it has failed", since=since)

    @property
    def served_model_names(self) -> Sequence[str]:
        return served_names(self.config)

    @property
    def adapters(self) -> Sequence[LoraRequest]:
        return self.client.adapters.served

    @property
    def model_root(self) -> str:
        return self.config.model.model

    @property
    def max_model_len(self) -> int | None:
        return self.client.max_model_len

    @property
    def engine_version(self) -> str | None:
        return self.client.engine_version

    @property
    def load(self) -> int:
        return self.slot.load

    def metrics(self) -> MetricsSnapshot:
        return self.client.metrics.snapshot()
