"""What an order to several engines came to."""

from collections.abc import Sequence

from vllmfront.engine.client.orders._utility import Outcome
from vllmfront.errors import (
    ControlCallFailed,
    ControlCallTimeout,
    UtilityCallFailed,
    UtilityCallTimeout,
)


def failure_of(phase: str, outcomes: Sequence[Outcome]) -> ControlCallFailed | None:
    """Return what to say where an engine refused or was silent; one that is lost is told anew."""
    failures = {one.rank: one.error for one in outcomes if one.error is not None}
    refused = {n: str(e) for n, e in failures.items() if isinstance(e, UtilityCallFailed)}
    silent = {n: str(e) for n, e in failures.items() if isinstance(e, UtilityCallTimeout)}
    if refused:
        listed = "; ".join(f"engine {rank}: {text}" for rank, text in refused.items())
        return ControlCallFailed(f"{phase} failed on {listed}", phase=phase, failures=refused)
    if silent:
        listed = ", ".join(map(str, silent))
        return ControlCallTimeout(
            f"{phase} timed out: engine {listed} gave no answer; it may still be at it",
            phase=phase,
            failures=silent,
        )
    return None
