"""What state the server is in: pure."""

from collections.abc import Collection, Sequence

import attrs

from vllmfront.api.routes import HealthReport, ServingState
from vllmfront.engine import ClientSnapshot, EngineState, RankSnapshot, RankState
from vllmfront.engine.pause import HoldKind, HoldSnapshot

_STATES = {
    EngineState.LOADING: ServingState.LOADING,
    EngineState.READY: ServingState.READY,
    EngineState.STALLED: ServingState.STALLED,
    EngineState.RECOVERING: ServingState.RECOVERING,
    EngineState.FAILED: ServingState.FAILED,
}


@attrs.frozen(kw_only=True)
class Draining:
    """That the server is about to end: new requests are refused."""

    reason: str
    since: float


def assess(
    engines: ClientSnapshot,
    *,
    now: float,
    started: float,
    loaded: bool,
    draining: Draining | None,
) -> HealthReport:
    """Sum up what a request sent now may expect.

    Args:
        engines: The engine client's view.
        now: The present; all times are by the event loop's clock.
        started: When the server started.
        loaded: Whether the model's files have been read.
        draining: The end that has begun, if it has.
    """
    state, since = _STATES[engines.state], now - engines.seconds_in_state
    if draining is not None and state is not ServingState.FAILED:
        reason = f"the server is shutting down: {draining.reason}"
        return HealthReport(state=ServingState.DRAINING, reason=reason, since=draining.since)
    if state is ServingState.READY and not loaded:
        reason = "the model's files are being read"
        return HealthReport(state=ServingState.LOADING, reason=reason, since=started)
    retry_after = engines.seconds_until_ready if state is ServingState.RECOVERING else None
    reason = _reason(engines, state)
    if state is ServingState.READY and engines.holds:
        first = min(engines.holds, key=lambda hold: hold.kind is not HoldKind.SLEEP)
        state, since = _HELD[first.kind], first.since
    if engines.holds:
        reason = "; ".join((reason, *map(_describe_hold, engines.holds)))
    return HealthReport(
        state=state, reason=reason, since=since, retry_after=retry_after, holds=engines.holds
    )


_HELD = {HoldKind.PAUSE: ServingState.PAUSED, HoldKind.SLEEP: ServingState.ASLEEP}


def _describe_hold(hold: HoldSnapshot) -> str:
    by = "" if hold.owner is None else f" by {hold.owner}"
    lease = "" if hold.lease_left is None else f", for {hold.lease_left:.0f} s unless renewed"
    return f"generation is {hold.phase}{by}, mode {hold.mode.value}{lease}"


_NEEDED = {
    RankState.READY: EngineState.READY,
    RankState.STALLED: EngineState.STALLED,
    RankState.PREPARING: EngineState.RECOVERING,
    RankState.LOADING: EngineState.RECOVERING,
    RankState.DEAD: EngineState.RECOVERING,
}
"""How engines are to somebody who needs one that is so; the worst comes last."""

_FROM_BAD_TO_WORSE = (EngineState.READY, EngineState.STALLED, EngineState.RECOVERING)


def needing(engines: ClientSnapshot, ranks: Collection[int]) -> ClientSnapshot:
    """Return *engines* as somebody sees them who needs every one of *ranks*."""
    needed = tuple(rank for rank in engines.ranks if rank.rank in ranks)
    if engines.state in {EngineState.LOADING, EngineState.FAILED}:
        return attrs.evolve(engines, ranks=needed)
    worst = max(needed, key=lambda rank: _FROM_BAD_TO_WORSE.index(_NEEDED[rank.state]))
    return attrs.evolve(
        engines,
        state=_NEEDED[worst.state],
        seconds_in_state=worst.seconds_in_state,
        error=worst.error,
        ranks=needed,
    )


def _reason(engines: ClientSnapshot, state: ServingState) -> str:
    if state is ServingState.FAILED:
        return f"no engine is left, nor will there be another: {_line(engines.error)}"
    total = len(engines.ranks)
    others = [rank for rank in engines.ranks if rank.state is not RankState.READY]
    if not others:
        return "the engine serves" if total == 1 else f"all {total} engines serve"
    if total == 1:
        return _describe(others[0], engines.error)
    count = total - len(others)
    serving = f"{count} of {total} engines serve" if count else "no engine serves"
    return f"{serving}; {_list(others)}"


def _describe(rank: RankSnapshot, cause: str | None) -> str:
    """Say how the only engine is; *cause* is what ended the one before it."""
    if rank.state is RankState.LOADING:
        return "the engine is loading" + ("" if cause is None else f" again: {_line(cause)}")
    if rank.state is RankState.PREPARING:
        return "the engine has loaded, and is being told what it has to know"
    return _line(rank.error)


def _list(ranks: Sequence[RankSnapshot]) -> str:
    return ", ".join(f"engine {rank.rank} is {rank.state.value}" for rank in ranks)


def _line(error: str | None) -> str:
    return "no reason is known" if error is None else error.partition("\n")[0].rstrip(".")
