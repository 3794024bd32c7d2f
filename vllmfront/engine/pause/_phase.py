"""How far a pause window is, as a table.

It is *pausing* until every engine that serves has said that it stands still, and again while its
mode is widened. It is *resuming* from the order to go on until the engines have taken it; should
one refuse, the window stays. A pause that an engine refuses ends as if it had been resumed.
"""

import enum


class PausePhase(enum.StrEnum):
    """Of one window."""

    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    CLOSED = "closed"


class PauseEvent(enum.Enum):
    """What happens to a window."""

    STANDING = "all engines stand still"
    WIDENED = "its mode was widened"
    RESUME = "it is to end"
    REFUSED = "an engine refused"
    RESUMED = "all engines go on"


_NEXT = {
    (PausePhase.PAUSING, PauseEvent.STANDING): PausePhase.PAUSED,
    (PausePhase.PAUSING, PauseEvent.WIDENED): PausePhase.PAUSING,
    (PausePhase.PAUSING, PauseEvent.RESUME): PausePhase.RESUMING,
    (PausePhase.PAUSING, PauseEvent.REFUSED): PausePhase.RESUMING,
    (PausePhase.PAUSED, PauseEvent.WIDENED): PausePhase.PAUSING,
    (PausePhase.PAUSED, PauseEvent.RESUME): PausePhase.RESUMING,
    (PausePhase.RESUMING, PauseEvent.RESUME): PausePhase.RESUMING,
    (PausePhase.RESUMING, PauseEvent.REFUSED): PausePhase.PAUSED,
    (PausePhase.RESUMING, PauseEvent.RESUMED): PausePhase.CLOSED,
}


def next_pause_phase(phase: PausePhase, event: PauseEvent) -> PausePhase:
    """Return the phase after *event*.

    Raises:
        ValueError: It cannot happen in *phase*.
    """
    try:
        return _NEXT[phase, event]
    except KeyError:
        raise ValueError(f"a window that is {phase.value} cannot see that {event.value}") from None
