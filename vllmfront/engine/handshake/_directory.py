"""What engines are told in answer to HELLO: where everybody is whom they will talk to."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from vllmfront.engine.wire import EngineAddresses, Init


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


class Directory(Protocol):
    """Knows what to tell an engine."""

    def init_for(self, rank: int) -> Init | None:
        """Return the answer to the HELLO of *rank*; None where something is not known yet.

        An engine is told once in its life: it waits for what is missing, five minutes at most.
        """


@attrs.frozen(kw_only=True)
class FixedDirectory:
    """A directory of clients that are all known from the start."""

    clients: Sequence[ClientAddresses]
    """In order of ``client_index``."""

    coordinator: CoordinatorAddresses | None = None
    parallel_config: Mapping[str, Any] = attrs.field(factory=dict)
    """What is set on each engine's own parallel configuration."""

    def init_for(self, rank: int) -> Init:
        """Return the answer to any HELLO."""
        del rank
        return Init(init_addresses(self.clients, self.coordinator), self.parallel_config)


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
