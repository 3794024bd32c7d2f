"""What a simulated engine core says, before it has a wire form."""

from collections.abc import Sequence
from typing import Any

import attrs

from vllmfront.engine import EngineOutput


@attrs.frozen(kw_only=True)
class StepStats:
    """Scheduler statistics of one step; the wire form adds the many that stay zero."""

    running: int
    waiting: int
    kv_cache_usage: float
    prefix_requests: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefix_reset: bool = False
    wave: int = 0
    step: int = 0
    """Of ranks that step together: the present wave, and how many steps it had."""

    running_loras: dict[str, int] = attrs.field(factory=dict)
    waiting_loras: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class StepOutput:
    """Outputs for one client; an output is a list of ids where it carries nothing else."""

    client: int
    timestamp: float
    rows: Sequence[tuple[str, list[int] | EngineOutput]] = ()
    stats: StepStats | None = None
    finished: Sequence[str] | None = None
    weight_version: str | None = None


@attrs.frozen(kw_only=True)
class Answer:
    """The answer to one utility call: a failure text, or a result."""

    client: int
    timestamp: float
    call_id: int
    failure: str | None = None
    result: Any = None


@attrs.frozen
class Raw:
    """A frame that a script makes the engine send as it is."""

    client: int
    frame: bytes


@attrs.frozen(kw_only=True)
class LoadNotice:
    """How busy the engine is, for the coordinator."""

    timestamp: float
    stats: StepStats


@attrs.frozen(kw_only=True)
class WaveNotice:
    """The number of a wave that has begun, or of one that has ended, for the coordinator."""

    started: int | None = None
    ended: int | None = None


@attrs.frozen
class Death:
    """The engine core has failed: the sentinel goes to all clients, then nothing more."""

    reason: str


@attrs.frozen
class Vanishing:
    """The engine goes without a word."""


Notice = LoadNotice | WaveNotice

Message = StepOutput | Answer | Raw | Notice | Death | Vanishing
