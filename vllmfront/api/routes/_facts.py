"""What operator routes tell about the server, behind one small interface."""

from collections.abc import Sequence
from typing import Protocol

from vllmfront.api.routes._health import HealthReport
from vllmfront.api.routes._supervision import SupervisionReport
from vllmfront.engine import LoraRequest
from vllmfront.engine.metrics import MetricsSnapshot


class ServerFacts(Protocol):
    """The server as its operator routes see it; every property is read anew for each request."""

    def health(self) -> HealthReport:
        """Return how the server does now."""

    def supervision(self) -> SupervisionReport:
        """Return what runs inside the server now."""

    @property
    def served_model_names(self) -> Sequence[str]:
        """The primary name first."""

    @property
    def adapters(self) -> Sequence[LoraRequest]:
        """What requests may name besides the model, in the order of loading."""

    @property
    def model_root(self) -> str:
        """The model as given on the command line."""

    @property
    def max_model_len(self) -> int | None:
        """None until the engine has registered."""

    @property
    def engine_version(self) -> str | None:
        """The engine's version of vLLM, None until the engine has registered."""

    @property
    def load(self) -> int:
        """Inference requests that are not answered in full yet."""

    def metrics(self) -> MetricsSnapshot:
        """Return what the engine side has counted."""
