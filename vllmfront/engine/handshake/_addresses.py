"""Where everybody is whom engines will talk to."""

from collections.abc import Sequence

import attrs

from vllmfront.engine.wire import EngineAddresses


@attrs.frozen
class ClientAddresses:
    """Where one client takes registrations and outputs; its place among all is its index."""

    inputs: str
    outputs: str


@attrs.frozen(kw_only=True)
class CoordinatorAddresses:
    """Where engines that step together meet."""

    inputs: str
    """What engines subscribe to."""

    outputs: str
    """Where engines report."""

    stats: str
    """What frontends subscribe to; engines repeat it in their registration."""


def init_addresses(
    clients: Sequence[ClientAddresses], coordinator: CoordinatorAddresses | None = None
) -> EngineAddresses:
    """Bring addresses into the form of INIT."""
    return EngineAddresses(
        inputs=[one.inputs for one in clients],
        outputs=[one.outputs for one in clients],
        coordinator_input=None if coordinator is None else coordinator.inputs,
        coordinator_output=None if coordinator is None else coordinator.outputs,
        frontend_stats_publish_address=None if coordinator is None else coordinator.stats,
    )
