import attrs
import pytest

from tests.api.routes.test_supervision import ENGINES
from vllmfront.api.routes import HealthReport, ServingState
from vllmfront.engine import ClientSnapshot, EngineState, RankSnapshot, RankState
from vllmfront.engine.pause import HoldKind, HoldSnapshot, PauseMode
from vllmfront.lifecycles._health import Draining, assess, needing

NOW, STARTED = 100.0, 10.0


def engines(
    state: EngineState, *ranks: RankState, error: str | None = None, until: float | None = None
) -> ClientSnapshot:
    template = ENGINES.ranks[0]
    return attrs.evolve(
        ENGINES,
        state=state,
        seconds_in_state=30.0,
        error=error,
        seconds_until_ready=until,
        ranks=tuple(_rank(template, n, one, error) for n, one in enumerate(ranks)),
    )


def _rank(template: RankSnapshot, number: int, state: RankState, error: str | None) -> RankSnapshot:
    own = None if state in {RankState.READY, RankState.LOADING} else error
    return attrs.evolve(template, rank=number, state=state, error=own)


def report(
    snapshot: ClientSnapshot,
    *,
    loaded: bool = True,
    draining: Draining | None = None,
) -> HealthReport:
    return assess(snapshot, now=NOW, started=STARTED, loaded=loaded, draining=draining)


@pytest.mark.parametrize(
    ("snapshot", "state", "reason"),
    [
        (engines(EngineState.READY, RankState.READY), "ready", "the engine serves"),
        (
            engines(EngineState.READY, RankState.READY, RankState.READY),
            "ready",
            "all 2 engines serve",
        ),
        (
            engines(EngineState.READY, RankState.DEAD, RankState.READY, error="gone"),
            "ready",
            "1 of 2 engines serve; engine 0 is dead",
        ),
        (engines(EngineState.LOADING, RankState.LOADING), "loading", "the engine is loading"),
        (
            engines(EngineState.RECOVERING, RankState.DEAD, error="It fell.\n  | quoted"),
            "recovering",
            "It fell",
        ),
        (
            engines(EngineState.RECOVERING, RankState.LOADING, error="It fell."),
            "recovering",
            "the engine is loading again: It fell",
        ),
        (
            engines(EngineState.RECOVERING, RankState.DEAD, RankState.LOADING, error="It fell."),
            "recovering",
            "no engine serves; engine 0 is dead, engine 1 is loading",
        ),
        (
            engines(EngineState.STALLED, RankState.STALLED, error="engine 0 has been silent"),
            "stalled",
            "engine 0 has been silent",
        ),
        (
            engines(EngineState.FAILED, RankState.DEAD, error="It fell too often."),
            "failed",
            "no engine is left, nor will there be another: It fell too often",
        ),
    ],
)
def test_each_state_has_its_reason(snapshot: ClientSnapshot, state: str, reason: str) -> None:
    told = report(snapshot)

    assert (told.state.value, told.reason) == (state, reason)
    assert told.since == NOW - 30.0


def test_a_ready_engine_without_the_models_files_is_loading() -> None:
    told = report(engines(EngineState.READY, RankState.READY), loaded=False)

    assert told.state is ServingState.LOADING
    assert told.reason == "the model's files are being read"
    assert told.since == STARTED


@pytest.mark.parametrize(
    "state", [EngineState.LOADING, EngineState.READY, EngineState.STALLED, EngineState.RECOVERING]
)
def test_draining_is_what_counts_once_it_has_begun(state: EngineState) -> None:
    draining = Draining(reason="received SIGTERM", since=95.0)
    told = report(engines(state, RankState.READY), draining=draining)

    assert told.state is ServingState.DRAINING
    assert told.reason == "the server is shutting down: received SIGTERM"
    assert told.since == 95.0


def test_a_server_that_ends_because_it_has_failed_has_failed() -> None:
    draining = Draining(reason="a part of it has failed", since=95.0)
    told = report(engines(EngineState.FAILED, RankState.DEAD), draining=draining)

    assert told.state is ServingState.FAILED


@pytest.mark.parametrize("until", [20.0, None])
def test_a_recovery_has_the_clients_estimate(until: float | None) -> None:
    snapshot = engines(EngineState.RECOVERING, RankState.DEAD, error="gone", until=until)

    assert report(snapshot).retry_after == until


def test_only_a_recovery_is_estimated() -> None:
    snapshot = engines(EngineState.READY, RankState.READY, RankState.DEAD, error="x", until=20.0)

    assert report(snapshot).retry_after is None


@pytest.mark.parametrize(
    ("client", "first", "state", "reason"),
    [
        (EngineState.READY, RankState.READY, "ready", "the engine serves"),
        (EngineState.READY, RankState.STALLED, "stalled", "It fell"),
        (EngineState.READY, RankState.DEAD, "recovering", "It fell"),
        (EngineState.READY, RankState.LOADING, "recovering", "the engine is loading"),
        (EngineState.READY, RankState.PREPARING, "recovering", "the engine has loaded, and"),
        (EngineState.LOADING, RankState.READY, "loading", "the engine serves"),
        (EngineState.FAILED, RankState.DEAD, "failed", "no engine is left"),
    ],
)
def test_who_needs_one_engine_is_told_of_that(
    client: EngineState, first: RankState, state: str, reason: str
) -> None:
    snapshot = engines(client, first, RankState.READY, error="It fell.\n  | quoted")
    own, other = (report(needing(snapshot, (rank,))) for rank in (0, 1))

    assert own.state.value == state
    assert own.reason.startswith(reason)
    if client is EngineState.READY:
        assert other.state is ServingState.READY


def test_who_needs_several_engines_is_told_of_the_worst() -> None:
    snapshot = engines(
        EngineState.READY, RankState.READY, RankState.STALLED, RankState.DEAD, error="It fell."
    )

    assert report(needing(snapshot, (0, 1))).state is ServingState.STALLED
    assert report(needing(snapshot, (0, 1, 2))).state is ServingState.RECOVERING
    assert "1 of 3 engines serve" in report(needing(snapshot, (0, 1, 2))).reason


PAUSE = HoldSnapshot(
    kind=HoldKind.PAUSE, mode=PauseMode.KEEP, phase="paused", owner="trainer", since=90.0
)
SLEEP = attrs.evolve(PAUSE, kind=HoldKind.SLEEP, phase="sleeping", owner=None, since=95.0)


@pytest.mark.parametrize(
    ("holds", "state", "since"),
    [((PAUSE,), "paused", 90.0), ((SLEEP,), "asleep", 95.0), ((PAUSE, SLEEP), "asleep", 95.0)],
)
def test_what_is_held_back_says_how_by_whom_and_since_when(
    holds: tuple[HoldSnapshot, ...], state: str, since: float
) -> None:
    found = report(attrs.evolve(engines(EngineState.READY, RankState.READY), holds=holds))

    assert (found.state.value, found.since) == (state, since)
    assert (found.ready, found.healthy) == (False, True)
    fields = found.json_fields(NOW, 1_000.0)
    assert [held["kind"] for held in fields["held"]] == [hold.kind.value for hold in holds]
    if PAUSE in holds:
        assert "generation is paused by trainer, mode keep" in found.reason


def test_an_engine_that_is_lost_in_a_pause_is_told_before_the_pause() -> None:
    leased = attrs.evolve(PAUSE, lease_left=12.0)
    lost = engines(EngineState.RECOVERING, RankState.DEAD, error="It fell.")
    found = report(attrs.evolve(lost, holds=(leased,)))

    assert found.state is ServingState.RECOVERING
    assert found.reason.startswith("It fell; generation is paused by trainer")
    assert found.reason.endswith("for 12 s unless renewed")
