"""How the engines' weights stand, as operators and trainers are told."""

from collections.abc import Mapping

import attrs

from vllmfront.control._sync_state import SyncState


@attrs.frozen
class SyncFailure:
    """What led to FAILED."""

    phase: str
    failures: Mapping[int, str]
    """By rank."""


@attrs.frozen(kw_only=True)
class WeightVersion:
    """The engines' weights, as ``/weight_info`` tells."""

    label: str
    expected: str | None
    """What they were last given; None: nothing since they were started."""

    stale: tuple[int, ...]
    """Ranks that were started anew since, and have the weights of the model's files."""

    incomplete: tuple[int, ...]
    """Ranks whose last update was broken off, or is under way."""


@attrs.frozen(kw_only=True)
class WeightSnapshot:
    """The weight transfer at one moment."""

    state: SyncState
    since: float
    """By the event loop's clock."""

    draft: bool
    """Whether the update under way is one of the draft model."""

    chunks: int
    """How many have come of the update under way."""

    expected: str | None
    stale: tuple[int, ...]
    incomplete: tuple[int, ...]
    failure: SyncFailure | None
