"""How often, and after what delay, children are restarted: frozen values, pure."""

import math

import attrs
from attrs import validators


@attrs.frozen(kw_only=True)
class Backoff:
    """Delays before restarts: each *factor* times the one before, up to a cap."""

    base: float = attrs.field(default=1.0, validator=[validators.ge(0), validators.lt(math.inf)])
    """Seconds before the first restart; 0 restarts at once."""

    factor: float = attrs.field(default=2.0, validator=[validators.ge(1), validators.lt(math.inf)])
    cap: float = attrs.field(default=60.0, validator=[validators.ge(0), validators.lt(math.inf)])
    """Seconds that no delay exceeds."""

    jitter: float = attrs.field(default=0.1, validator=[validators.ge(0), validators.le(1)])
    """The share of a delay that chance may take off, so that not everybody returns at once."""

    reset_after: float = attrs.field(default=60.0, validator=validators.gt(0))
    """Seconds that a child has to be ready for its next delay to be the first one again."""

    def __attrs_post_init__(self) -> None:
        if self.cap < self.base:
            raise ValueError(f"the cap of {self.cap:g} s is below the first delay, {self.base:g} s")

    def longest(self, attempt: int) -> float:
        """Return the seconds before restart *attempt*, counted from 0, that chance can only cut."""
        try:
            return min(self.cap, self.base * self.factor**attempt)
        except OverflowError:
            return self.cap

    def longest_sum(self, count: int) -> float:
        """Return the seconds that the first *count* delays take together at most."""
        total, steady = 0.0, self.base if self.factor == 1 else self.cap
        for attempt in range(count):
            delay = self.longest(attempt)
            if delay in {0.0, steady}:
                return total + (count - attempt) * delay
            total += delay
        return total

    def delay(self, attempt: int, chance: float) -> float:
        """Return the seconds before restart *attempt*; *chance* lies between 0 and 1."""
        return self.longest(attempt) * (1.0 - self.jitter * chance)


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """How many restarts are tolerated, and how they are spaced."""

    intensity: int = attrs.field(default=0, validator=validators.ge(0))
    """Restarts tolerated within *period*; 0 gives up at the first failure."""

    period: float = attrs.field(default=60.0, validator=[validators.gt(0), validators.lt(math.inf)])
    """Seconds of the sliding window."""

    backoff: Backoff = Backoff()

    def __attrs_post_init__(self) -> None:
        """Refuse a window that forgets the first restart before there can be one too many."""
        longest = self.backoff.longest_sum(self.intensity)
        if longest > self.period:
            raise ValueError(
                f"more than {self.intensity} restarts in {self.period:g} s could never happen: the "
                f"delays before the first {self.intensity} take {longest:g} s by themselves; "
                "choose a longer period, fewer restarts, or shorter delays"
            )

    @property
    def limit(self) -> str:
        """Say, after a failure, why there is no restart; empty where none is ever expected."""
        if self.intensity == 0:
            return ""
        plural = "s" if self.intensity > 1 else ""
        return f" too often: {self.intensity} restart{plural} in {self.period:g} s did not help"
