"""Pauses of ranks that step together: all stand still, or none would ever."""

import pytest
import trio

from tests.api.developer.rig import COMPLETIONS, completion, error_of, stage
from vllmfront.engine import EngineClientConfig

TOGETHER = EngineClientConfig(recovery_wait=5, coordinated=True)


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
async def test_ranks_in_lockstep_pause_and_go_on(mode: str, version: str) -> None:
    async with stage(client_config=TOGETHER, ranks=2, lockstep=True, vllm_version=version) as on:
        calls = [on.begin(COMPLETIONS, completion(max_tokens=60)) for _ in range(3)]
        await on.in_flight(3)
        await on.done("/pause", mode=mode)
        late = on.begin(COMPLETIONS, completion(max_tokens=4))
        if mode == "keep":
            await trio.sleep(0.1)
            assert not late.writer.started
        else:
            assert error_of(await late.finished(), 503)["reason"] == "paused"
        await on.done("/resume")
        reasons = {(await one.finished()).json["choices"][0]["finish_reason"] for one in calls}
        assert reasons == ({"abort"} if mode == "abort" else {"length"})
        assert (await on.generate()).status == 200
        if mode == "keep":
            assert (await late.finished()).status == 200


async def test_idle_ranks_in_lockstep_pause_too() -> None:
    async with stage(client_config=TOGETHER, ranks=2, lockstep=True) as on:
        for mode in ("keep", "wait", "abort"):
            await on.done("/pause", mode=mode)
            await on.done("/resume")
        assert (await on.generate()).status == 200
