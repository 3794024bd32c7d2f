from vllmfront.api.routes import HealthReport, ServingState, SupervisionReport
from vllmfront.engine import ClientSnapshot, EngineState, RankSnapshot, RankState
from vllmfront.supervisor import ChildSnapshot, ChildState, Strategy, SupervisorSnapshot


def child(name: str, state: ChildState, **fields: object) -> ChildSnapshot:
    defaults: dict[str, object] = {
        "generation": 1,
        "since": 90.0,
        "restarts": 0,
        "next_try": None,
        "first_failure": None,
        "last_failure": None,
    }
    return ChildSnapshot(name=name, state=state, **(defaults | fields))  # type: ignore[arg-type] # keywords of the caller


def tree(name: str, *children: ChildSnapshot, intensity: int = 0) -> SupervisorSnapshot:
    return SupervisorSnapshot(
        name=name,
        state=ChildState.READY,
        since=80.0,
        strategy=Strategy.ONE_FOR_ONE,
        restarts=intensity,
        intensity=intensity,
        period=600.0,
        next_try=None,
        children=children,
    )


ENGINES = ClientSnapshot(
    state=EngineState.READY,
    seconds_in_state=12.0,
    error=None,
    seconds_until_ready=None,
    ranks=(
        RankSnapshot(
            rank=0,
            state=RankState.READY,
            seconds_in_state=12.0,
            error=None,
            load_seconds=3.0,
            incarnation=2,
            in_flight=3,
            seconds_since_output=0.0123456,
        ),
    ),
    requests=2,
    waiting=1,
    engine_requests=3,
    pending_calls=0,
    deadlines=0,
    resent_requests=4,
    continued_requests=5,
)


def test_the_whole_tree_is_told_with_ages_and_countdowns() -> None:
    process = child(
        "process",
        ChildState.BACKOFF,
        generation=2,
        next_try=104.5,
        restarts=1,
        first_failure="it fell",
        last_failure="it fell again",
    )
    engine = child("engine", ChildState.BACKOFF, tree=tree("engine", process, intensity=1))
    report = SupervisionReport(
        health=HealthReport(state=ServingState.READY, reason="because", since=100.0),
        tree=tree("root", engine, child("api", ChildState.NEW, since=None)),
        engines=ENGINES,
        tasks=9,
    )
    told = report.json_fields(now=100.0, wall=1_000_000_000.0)
    top, below = told["tree"], told["tree"]["children"][0]["tree"]

    assert list(told) == ["health", "tree", "engines", "tasks"]
    assert told["tasks"] == 9
    assert (top["name"], top["strategy"], top["intensity"]) == ("root", "one_for_one", 0)
    assert (top["seconds"], top["since"]) == (20.0, "2001-09-09T01:46:20.000Z")
    assert (below["restarts"], below["intensity"], below["period"]) == (1, 1, 600.0)
    assert below["children"] == [
        {
            "name": "process",
            "state": "backoff",
            "since": "2001-09-09T01:46:30.000Z",
            "seconds": 10.0,
            "generation": 2,
            "restarts": 1,
            "next_try": 4.5,
            "first_failure": "it fell",
            "last_failure": "it fell again",
            "tree": None,
        }
    ]
    assert top["children"][1]["since"] is None
    assert (told["engines"]["requests"], told["engines"]["waiting"]) == (2, 1)
    assert told["engines"]["ranks"][0] == {
        "rank": 0,
        "state": "ready",
        "seconds": 12.0,
        "error": None,
        "incarnation": 2,
        "in_flight": 3,
        "weight_version": "default",
        "load_seconds": 3.0,
        "seconds_since_output": 0.012,
    }
