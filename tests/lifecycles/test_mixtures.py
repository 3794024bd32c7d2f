"""Frontends of two nodes, whose engines step together with those of the other."""

from pathlib import Path

import pytest
import trio

from tests.lifecycles.rig import SIMULATE
from tests.lifecycles.test_deployments import answers, deployment, free_port, node, served

pytestmark = pytest.mark.slow

IDLE_SECONDS = 0.3
"""Until ranks with a step of 5 ms that vote at each sixteenth have become idle."""


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
async def test_requests_at_either_node_wake_all_engines(version: str, tmp_path: Path) -> None:
    port = free_port()
    first, second = (
        node(
            tmp_path,
            port,
            engine=f"{SIMULATE} --lockstep --vllm-version {version}",
            moe=True,
            hybrid_lb=True,
            data_parallel_size=2,
            data_parallel_size_local=1,
            data_parallel_start_rank=start,
        )
        for start in (0, 1)
    )
    async with deployment(second, first) as (later, earlier):
        await earlier.wait_ready()
        await later.wait_ready()
        for _ in range(3):
            for frontend in (later, earlier):
                await trio.sleep(IDLE_SECONDS)
                with trio.fail_after(5):
                    assert await answers(frontend, 1) == [3]
        ranks = [await served(each) for each in (earlier, later)]

    assert ranks == [{0}, {1}]
    assert earlier.error is None
    assert later.error is None
