"""How long a window lasts without a sign of life from its owner. Pure."""

import enum
import math

import attrs


class LeaseAction(enum.StrEnum):
    """What ends a window whose lease was not renewed."""

    RESUME = "resume"
    KEEP_PAUSED = "keep-paused"
    """Nothing: anybody may take it over, or resume."""

    SHUTDOWN = "shutdown"


@attrs.define
class Lease:
    """Seconds that count anew with each renewal; None: for ever."""

    seconds: float | None
    due: float = math.inf

    @classmethod
    def of(cls, seconds: float | None, now: float) -> "Lease":
        """Return a lease of *seconds* from *now* on."""
        return cls(seconds, math.inf if seconds is None else now + seconds)

    def renew(self, now: float, seconds: float | None = None) -> None:
        """Count anew, for other *seconds* where they are given."""
        if seconds is not None:
            self.seconds = seconds
        self.due = math.inf if self.seconds is None else now + self.seconds

    def end(self) -> None:
        """Count no more: it has run out. A renewal makes it as long as it was."""
        self.due = math.inf

    def left(self, now: float) -> float | None:
        """Return the seconds that are left; None: it never ends."""
        return None if self.due == math.inf else max(0.0, self.due - now)
