"""What the server tells operators about itself."""

from collections.abc import Sequence

import attrs

from vllmfront.engine import EngineClient, EngineState, MetricsSnapshot
from vllmfront.lifecycles._config import ServeConfig
from vllmfront.lifecycles._model import DrainingSlot, served_names


@attrs.frozen(kw_only=True)
class Facts:
    """Reads everything anew each time: nothing here can be out of date."""

    config: ServeConfig
    client: EngineClient
    slot: DrainingSlot

    @property
    def healthy(self) -> bool:
        """Whether a request would be served now."""
        loaded = self.slot.filled and not self.slot.closed
        return loaded and self.client.state is EngineState.READY

    @property
    def served_model_names(self) -> Sequence[str]:
        return served_names(self.config)

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
