"""Coordination of data-parallel engines that step together, as its owner and as a client of it.

Dense engines, which know nothing of each other, need none.
"""

from vllmfront.engine.coordinator._coordinator import Coordinator, CoordinatorSnapshot
from vllmfront.engine.coordinator._listeners import (
    COORDINATOR_LISTENERS,
    CoordinatorListeners,
    adopt_coordinator_listeners,
    open_coordinator_listeners,
)
from vllmfront.engine.coordinator._rules import (
    Event,
    Outcome,
    WakeUp,
    WaveState,
    decide,
    needs_waking,
)
from vllmfront.engine.coordinator._subscription import CoordinatorSubscription
from vllmfront.engine.coordinator._waves import LoadObserver, NoWaves, Waves

__all__ = [
    "COORDINATOR_LISTENERS",
    "Coordinator",
    "CoordinatorListeners",
    "CoordinatorSnapshot",
    "CoordinatorSubscription",
    "Event",
    "LoadObserver",
    "NoWaves",
    "Outcome",
    "WakeUp",
    "WaveState",
    "Waves",
    "adopt_coordinator_listeners",
    "decide",
    "needs_waking",
    "open_coordinator_listeners",
]
