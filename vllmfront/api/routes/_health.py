"""How well the server does, in one value, and as probes tell it."""

import enum
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from vllmfront.engine.pause import HoldSnapshot


class ServingState(enum.Enum):
    """What a request sent now may expect."""

    LOADING = "loading"
    """Nothing yet: files or engines are being loaded for the first time."""

    READY = "ready"
    STALLED = "stalled"
    """No answer soon: the engines live, and say nothing about what they work on."""

    RECOVERING = "recovering"
    """To wait for an engine in place of one that was lost, or to be refused."""

    PAUSED = "paused"
    """To be refused, or to wait, until somebody lets generation go on."""

    ASLEEP = "asleep"
    """To be refused: engines have let go of weights or cache until somebody wakes them up."""

    DRAINING = "draining"
    """To be refused: the server finishes what it has, and ends."""

    FAILED = "failed"
    """To be refused: no engine is left, and none is on its way."""


@attrs.frozen(kw_only=True)
class HealthReport:
    """The server's state at one moment."""

    state: ServingState
    reason: str
    """One sentence, for people."""

    since: float
    """When the state began, in seconds by the clock that the program runs on."""

    retry_after: float | None = None
    """Seconds until another try may succeed, where there is an estimate."""

    holds: Sequence[HoldSnapshot] = ()
    """What holds generation back, whatever the state."""

    @property
    def healthy(self) -> bool:
        """Whether the server and its engines are well: somebody may hold them back on purpose."""
        return self.state in {ServingState.READY, ServingState.PAUSED, ServingState.ASLEEP}

    @property
    def ready(self) -> bool:
        """Whether a request would be served now."""
        return self.state is ServingState.READY

    def json_fields(self, now: float, wall: float) -> dict[str, Any]:
        """Return what a JSON body says.

        Args:
            now: The present, by the clock of ``since``.
            wall: The present, in seconds since 1970.
        """
        fields: dict[str, Any] = {
            "state": self.state.value,
            "reason": self.reason,
            **age_fields(self.since, now, wall),
        }
        if self.retry_after is not None:
            fields["retry_after"] = whole_seconds(self.retry_after)
        if self.holds:
            fields["held"] = [_hold_fields(hold, now, wall) for hold in self.holds]
        return fields


def _hold_fields(hold: HoldSnapshot, now: float, wall: float) -> dict[str, Any]:
    left = hold.lease_left
    return {
        "kind": hold.kind.value,
        "mode": hold.mode.value,
        "phase": hold.phase,
        "owner": hold.owner,
        **age_fields(hold.since, now, wall),
        "lease_left": None if left is None else round(left, 3),
    }


def age_fields(since: float, now: float, wall: float) -> dict[str, Any]:
    """Return when something began, and how many seconds ago: clocks of two hosts may differ."""
    seconds = max(0.0, now - since)
    begun = datetime.fromtimestamp(wall - seconds, UTC)
    return {
        "since": begun.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "seconds": round(seconds, 3),
    }


def whole_seconds(seconds: float) -> int:
    """Round up, to one at least, as ``Retry-After`` wants it."""
    return max(1, math.ceil(seconds))
