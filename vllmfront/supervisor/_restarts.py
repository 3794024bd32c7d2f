"""The policy at work: restarts of one supervisor's children, counted and spaced. Pure.

A window escalates only if as many delays as it tolerates restarts fit into it. The policy's
validator has seen to that for the first delays of the backoff, hence no later ones may be used
before the window has had its chance. So a delay starts over not only after a time of health, but
also when the window has forgotten a restart: whatever came before, a child that only ever fails
is given up after at most ``intensity`` restarts more.
"""

from collections.abc import Callable, Mapping

import attrs

from vllmfront.supervisor._policy import RestartPolicy
from vllmfront.supervisor._window import RestartWindow, ServiceClock


@attrs.define
class Restarts:
    """Decides after each incident. The caller brings the time, in monotonic seconds."""

    policy: RestartPolicy
    random: Callable[[], float]
    """Returns numbers between 0 and 1."""

    _window: RestartWindow = attrs.field(init=False)
    _clock: ServiceClock = attrs.field(factory=ServiceClock, init=False)
    _attempts: dict[str, int] = attrs.field(factory=dict, init=False)
    """Delays of a child since it was healthy or the window forgot something."""

    def __attrs_post_init__(self) -> None:
        self._window = RestartWindow(self.policy.intensity, self.policy.period)

    def incident(self, now: float, uptimes: Mapping[str, float]) -> float | None:
        """Count one incident, however many children failed in it.

        Args:
            now: The time.
            uptimes: For each child that failed, the seconds for which it had been ready.

        Returns:
            The seconds to wait before the restart; None when it would be one too many.
        """
        time = self._clock.read(now)
        if self._window.forget(time):
            self._attempts.clear()
        for name, uptime in uptimes.items():
            if uptime >= self.policy.backoff.reset_after:
                self._attempts.pop(name, None)
        if not self._window.admit(time, *uptimes):
            return None
        attempt = max(self._attempts.get(name, 0) for name in uptimes)
        for name in uptimes:
            self._attempts[name] = attempt + 1
        return self.policy.backoff.delay(attempt, self.random())

    def count(self, now: float, name: str | None = None) -> int:
        """Count the restarts in the window, of one child or of all."""
        return self._window.count(self._clock.read(now), name)

    def hold_clock(self, now: float) -> None:
        """Let no restart grow old: something is starting or stopping."""
        self._clock.hold(now)

    def release_clock(self, now: float) -> None:
        """Let restarts grow old again."""
        self._clock.release(now)
