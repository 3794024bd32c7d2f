"""Two engines behind one frontend."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.end_to_end.chats import FRANCE
from tests.end_to_end.deployments import Deployment
from tests.end_to_end.rig import Server

pytestmark = pytest.mark.engine

RANKS = (0, 1)


def served(server: Server) -> list[float]:
    """Count the requests that each engine has served."""
    return [server.metric("vllm:request_success_total", rank) for rank in RANKS]


def test_two_engines_share_the_work(parallel: Deployment) -> None:
    server = parallel.server
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda _: server.post("/v1/chat/completions", **FRANCE.request).json(), range(8)
        )
        texts = {answer["choices"][0]["message"]["content"] for answer in answers}
    shared = served(server)
    for _ in range(3):
        with server.stream(tokens=5, headers={"X-data-parallel-rank": "1"}) as stream:
            *_, last, done = stream.rest()
    pinned = served(server)

    assert texts == {FRANCE.answer}
    assert min(shared) > 0
    assert sum(shared) == 8
    assert done == "[DONE]"
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert [after - before for before, after in zip(shared, pinned, strict=True)] == [0, 3]
