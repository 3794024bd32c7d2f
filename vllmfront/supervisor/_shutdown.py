"""The program's one decision to end: soft, then hard, by one absolute deadline."""

import logging
import math

import trio

_LOGGER = logging.getLogger(__name__)


_HURRY_MARGIN = 3.0
"""Seconds from a hard stop to the end: what killing and reaping a process tree may take."""


class Shutdown:
    """Whether, why and until when the program is ending.

    The first request is soft and sets both deadlines, once for everybody; the second one moves
    them to the present.
    """

    def __init__(self, budget: float, margin: float) -> None:
        """Plan an end.

        Args:
            budget: Seconds that running work may go on after the request.
            margin: Seconds after that for cutting it off and for stopping what we started.
        """
        self.requested = trio.Event()
        """Set at the soft stop."""

        self.hurried = trio.Event()
        """Set at the hard stop, which implies the soft one."""

        self.reason: str | None = None
        self._budget = budget
        self._margin = margin
        self._deadline = math.inf
        self._end = math.inf

    def __repr__(self) -> str:
        state = "hurried" if self.hurried.is_set() else self.reason or "not requested"
        return f"<Shutdown {state}>"

    @property
    def deadline(self) -> float:
        """Trio time at which running work is cut off; infinite until asked to stop."""
        return self._deadline

    @property
    def end(self) -> float:
        """Trio time by which everything must have ended; infinite until asked to stop."""
        return self._end

    def request(self, reason: str) -> None:
        """Ask for a soft stop; asked again, for a hard one."""
        if self.requested.is_set():
            self.hurry(reason)
        else:
            self._request(self._budget, reason)

    def request_within(self, seconds: float, reason: str) -> None:
        """Ask for a soft stop for which somebody else has set the time.

        One that was asked for before ends no later than that either.
        """
        if self.requested.is_set():
            self._deadline = min(self._deadline, trio.current_time() + seconds)
            self._end = self._deadline + self._margin
        else:
            self._request(seconds, reason)

    def _request(self, budget: float, reason: str) -> None:
        self.reason = reason
        self._deadline = trio.current_time() + budget
        self._end = self._deadline + self._margin
        self.requested.set()
        _LOGGER.info("shutting down: %s; running work may take %g s", reason, round(budget, 2))

    def hurry(self, reason: str) -> None:
        """Ask for a hard stop: what is running ends now."""
        if self.hurried.is_set():
            return
        self.reason = self.reason or reason
        self._deadline = trio.current_time()
        self._end = self._deadline + min(_HURRY_MARGIN, self._margin)
        self.requested.set()
        self.hurried.set()
        _LOGGER.info("shutting down at once: %s", reason)
