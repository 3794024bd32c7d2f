"""As a client of Python's own coordinator, before engines that step together."""

import time
from pathlib import Path

import pytest

from tests.end_to_end.rig import START_SECONDS, wait_until
from tests.real_engine._mixture import make_mixture
from tests.supervised.rig import supervising

pytestmark = [pytest.mark.engine, pytest.mark.slow]

IDLE_SECONDS = 0.7
"""After a request, until the engines have become idle: a few steps, and a vote."""


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_requests_to_idle_engines_run(version: str, tmp_path: Path) -> None:
    model = make_mixture(tmp_path)
    with supervising(version, tmp_path, *("--data-parallel-size", "2"), model=model) as supervised:
        wait_until(lambda: supervised.health() == 200 or supervised.has_ended(), 2 * START_SECONDS)
        assert not supervised.has_ended(), supervised.log[-4000:]
        for number in range(6):
            time.sleep(IDLE_SECONDS)
            answer = supervised.http.post(
                "/v1/completions",
                json={"prompt": "hi", "max_tokens": 1 + 4 * number, "ignore_eos": True},
                headers={"X-data-parallel-rank": str(number % 2)},
                timeout=20.0,
            )
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 1 + 4 * number
