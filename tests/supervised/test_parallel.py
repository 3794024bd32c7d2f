"""Several engines under vLLM's own supervisor, on one node or on two."""

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.rig import wait_until
from tests.lifecycles.rig import alive
from tests.real_engine._process import TINY_CHAT
from tests.supervised.rig import Supervised, free_port, supervising

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def ranks(supervised: Supervised) -> list[int]:
    found = supervised.http.get("/supervisor").json()["engines"]["ranks"]
    return [each["rank"] for each in found]


def ask(supervised: Supervised, rank: int | None = None) -> int:
    """Ask one engine, or any; return how many tokens came."""
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 5, "ignore_eos": True}
    answer = supervised.http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    tokens: int = answer.json()["usage"]["completion_tokens"]
    return tokens


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """A dense model that says it has experts: its engines step together."""
    folder = tmp_path / "mixture"
    shutil.copytree(TINY_CHAT, folder)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_experts": 8}))
    return folder


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_independent_engines_are_all_served(version: str, tmp_path: Path) -> None:
    with supervising(version, tmp_path, "--data-parallel-size", "2") as supervised:
        supervised.wait_ready()

        assert "--coordinator-address" in supervised.log
        assert ranks(supervised) == [0, 1]
        assert [ask(supervised, rank) for rank in (0, 1)] == [5, 5]
        assert supervised.stop() == 0


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_engines_that_step_together_are_woken_by_the_supervisors_coordinator(
    version: str, tmp_path: Path, mixture: Path
) -> None:
    with supervising(version, tmp_path, "--data-parallel-size", "2", model=mixture) as supervised:
        supervised.wait_ready()

        for _pause in range(3):  # between two of them the engines go idle
            with ThreadPoolExecutor() as pool:
                assert set(pool.map(lambda rank: ask(supervised, rank), (0, 1, 0, 1))) == {5}
            assert ask(supervised, 1) == 5
        frontend = supervised.frontend
        with supervised.stream(max_tokens=1000) as stream:
            stream.next()
            os.kill(supervised.engines[0], signal.SIGKILL)
            rest = stream.rest()

        assert json.loads(rest[-2])["error"]["code"] == 503
        wait_until(supervised.has_ended)
        assert supervised.process.returncode == 1
        assert not alive(frontend)


@pytest.mark.parametrize("flag", ["--data-parallel-hybrid-lb", None])
def test_each_of_two_nodes_serves_its_own_engine(flag: str | None, tmp_path: Path) -> None:
    port = free_port()

    def node(rank: int) -> list[str]:
        return [
            *([] if flag is None else [flag]),
            *("--data-parallel-size", "2", "--data-parallel-size-local", "1"),
            *("--data-parallel-start-rank", str(rank)),
            *("--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(port)),
        ]

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with (
        supervising("0.32.0", tmp_path / "first", *node(0)) as first,
        supervising("0.32.0", tmp_path / "second", *node(1)) as second,
    ):
        first.wait_ready()
        second.wait_ready()

        assert (ranks(first), ranks(second)) == ([0], [1])
        assert [ask(each) for each in (first, second)] == [5, 5]
        statuses = [
            each.http.post(
                "/v1/completions",
                json={"prompt": "hi", "max_tokens": 1},
                headers={"X-data-parallel-rank": str(rank)},
            ).status_code
            for each, rank in ((first, 1), (second, 0))
        ]
        assert statuses == [400, 400]
        assert [each.stop() for each in (first, second)] == [0, 0]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--headless", "--grpc-port", "0"], "--grpc-port requires a Rust frontend"),
        (
            ["--data-parallel-multi-port-external-lb", "--grpc-port", "0"],
            "--grpc-port is incompatible with",
        ),
        (["--headless", "--api-server-count", "2"], "cannot be used with --headless"),
        (["--lora-modules", "a=b", "--middleware", "x.y"], "- middleware: this frontend does not"),
        (["--grpc-port", "0"], "--grpc-listen-fd"),
    ],
)
def test_what_cannot_be_served_is_refused_where_the_reference_does(
    options: list[str], complaint: str, tmp_path: Path
) -> None:
    with supervising("0.33.0", tmp_path, *options) as supervised:
        assert supervised.process.wait(180) == 1
        assert complaint in supervised.log
