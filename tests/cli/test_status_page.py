import attrs
import pytest

from vllmfront.cli._status_client import Status
from vllmfront.cli._status_page import Painter, clean, page, span, unreachable_page
from vllmfront.cli._status_report import Child, Engines, Health, Inside, Rank, Tree, Worker

URL = "http://127.0.0.1:8000"
PLAIN = Painter(colour=False)

RECOVERING = Health(
    state="recovering",
    reason="the engine ended, another is started",
    seconds=4.5,
    retry_after=21.0,
)

PROCESS = Child(
    name="process",
    state="backoff",
    generation=2,
    seconds=4.5,
    next_try=3.5,
    first_failure="the managed engine ended with status 3",
    last_failure="the managed engine was killed by SIGKILL (9)\n  | x",
)

INSIDE = Inside(
    tree=Tree(
        name="root",
        restarts=0,
        intensity=0,
        period=1.0,
        children=(
            Child(
                name="engine",
                state="ready",
                generation=1,
                seconds=3725.0,
                tree=Tree(name="engine", restarts=1, intensity=3, period=600, children=(PROCESS,)),
            ),
            Child(name="api", state="ready", generation=1, seconds=3720.0),
        ),
    ),
    engines=Engines(
        state="recovering",
        requests=1,
        ranks=(
            Rank(rank=0, state="recovering", incarnation=2, in_flight=1, error="engine 0 is gone"),
            Rank(rank=11, state="ready", incarnation=1, in_flight=0, seconds_since_output=0.25),
        ),
    ),
)


def test_a_page_shows_state_tree_and_engines() -> None:
    lines = page(URL, Status(health=RECOVERING, inside=INSIDE), PLAIN)

    assert lines == [
        "http://127.0.0.1:8000  RECOVERING for 4.5 s",
        "  the engine ended, another is started",
        "  expected back in 21 s",
        "",
        "root",
        "├─ engine      READY    1 h 02 min  1 of 3 restarts in 10 min 00 s",
        "│  └─ process  BACKOFF       4.5 s  life 2, next try in 3.5 s",
        "│        first failure: the managed engine ended with status 3",
        "│        last failure: the managed engine was killed by SIGKILL (9)",
        "└─ api         READY    1 h 02 min",
        "",
        "engines  RECOVERING  1 request in flight",
        "   0  RECOVERING  life 2, 1 in flight",
        "      engine 0 is gone",
        "  11  READY       0 in flight, last output 0.2 s ago",
    ]


def test_what_the_key_does_not_open_is_replaced_by_advice() -> None:
    status = Status(health=RECOVERING, inside=None, locked="give the key")

    assert page(URL, status, PLAIN)[3:] == ["", "give the key"]


def test_a_ready_server_is_expected_back_never() -> None:
    health = attrs.evolve(RECOVERING, state="ready")

    assert "expected back" not in "\n".join(page(URL, Status(health=health, inside=INSIDE), PLAIN))


def test_colours_are_for_terminals() -> None:
    coloured = page(URL, Status(health=RECOVERING, inside=INSIDE), Painter(colour=True))
    plain = page(URL, Status(health=RECOVERING, inside=INSIDE), PLAIN)

    assert "\033[33mRECOVERING\033[0m" in coloured[0]
    assert coloured[4] == "root"
    assert "\033" not in "".join(plain)
    assert "\033[31mUNREACHABLE\033[0m" in unreachable_page(URL, "x", Painter(colour=True))[0]


def test_no_failure_can_command_the_terminal() -> None:
    assert clean("\033[2Jé\x07") == "?[2Jé?"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (12.4, "12 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3600, "1 h 00 min"),
        (90061, "1 d 01 h"),
    ],
)
def test_spans_have_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_page_shows_each_of_several_workers() -> None:
    workers = (
        Worker(
            worker=1,
            pid=41,
            serving=True,
            connections=20,
            choices=17,
            resident_bytes=98_400_000,
            cpu_seconds=75.0,
        ),
        Worker(worker=2, pid=57, serving=False, connections=1, choices=0),
    )
    inside = attrs.evolve(INSIDE, workers=workers)
    lines = page(URL, Status(health=RECOVERING, inside=inside), PLAIN)

    assert lines[lines.index("workers") - 1 : lines.index("workers") + 4] == [
        "",
        "workers",
        "  1  READY     pid 41, 20 connections, 17 in flight, 1 min 15 s of processor time, 98 MB",
        "  2  STARTING  pid 57, 1 connection, 0 in flight, 0.0 s of processor time",
        "",
    ]
