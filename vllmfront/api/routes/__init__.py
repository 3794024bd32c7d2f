"""Routes for operators: probes, models, metrics, and clear answers for what is not served."""

from vllmfront.api.routes._facts import ServerFacts
from vllmfront.api.routes._health import HealthReport, ServingState
from vllmfront.api.routes._mount import open_operator_router
from vllmfront.api.routes._port_pins import PortOverview, PortPins
from vllmfront.api.routes._supervision import SupervisionReport

__all__ = [
    "HealthReport",
    "PortOverview",
    "PortPins",
    "ServerFacts",
    "ServingState",
    "SupervisionReport",
    "open_operator_router",
]
