"""What engines are told besides requests: utility calls, pauses, sleep, adapters."""

from vllmfront.engine.client.orders._adapters import Adapters
from vllmfront.engine.client.orders._pauses import Pauses
from vllmfront.engine.client.orders._sleeping import Sleeping
from vllmfront.engine.client.orders._utility import DEFAULT_CALL_SECONDS, Outcome, UtilityCalls

__all__ = ["DEFAULT_CALL_SECONDS", "Adapters", "Outcome", "Pauses", "Sleeping", "UtilityCalls"]
