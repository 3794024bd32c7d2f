"""What happens when the lease of a pause runs out."""

import logging
from collections.abc import Callable

from vllmfront.engine.pause import LeaseAction, PauseWindow

_LOGGER = logging.getLogger(__name__)


class LeaseEnd:
    """Decides as ``--pause-lease-action`` says, and says so, loudly."""

    def __init__(self, action: LeaseAction) -> None:
        self.veto: Callable[[], str | None] = lambda: None
        """Asked whether generation must not go on although the lease of a window has run out;
        returns why."""

        self.on_shutdown: Callable[[str], None] | None = None
        """Called with the reason where a lapsed lease is to end the program."""

        self._action = action

    def lapse(self, window: PauseWindow, now: float) -> bool:
        """Take note that the lease of *window* has run out; return whether the window ends."""
        window.lease.end()
        window.lapsed = True
        action, veto = self._action, self.veto()
        story = (
            f"The pause{by_whom(window.owner)}, mode {window.mode.value}, has lasted "
            f"{now - window.hold.since:.0f} s, and its lease was not renewed"
        )
        if action is LeaseAction.SHUTDOWN and self.on_shutdown is not None:
            _LOGGER.error("%s: ending the program, as --pause-lease-action says", story)
            self.on_shutdown("the lease of a pause was not renewed")
            return False
        if action is LeaseAction.RESUME and veto is None:
            _LOGGER.error("%s: generation goes on, as --pause-lease-action says", story)
            return True
        why, end = "as --pause-lease-action says", "POST /resume ends that"
        if veto is not None:
            why = veto
            end = "POST /shutdown_weight_transfer_engine gives the update up, then POST /resume"
        _LOGGER.error("%s: it stays paused, %s; %s", story, why, end)
        return False


def by_whom(owner: str | None) -> str:
    """Return words for the owner of a pause, where there is one."""
    return "" if owner is None else f" by {owner}"
