"""An upgrade while generation is paused."""

from pathlib import Path

import pytest
import trio

from tests.lifecycles.upgrade.service import open_service, wait_finished
from tests.lifecycles.upgrade.test_processes import stop


@pytest.mark.slow
async def test_a_pause_outlives_the_process_that_was_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    async with open_service(tmp_path) as service:
        service.start_engine(step_time=0.005)
        await service.wait_ready()
        old = service.pid
        stream = await service.begin_stream(200)
        paused = await service.http.post("/pause?mode=keep&owner=trainer&lease=60")
        assert paused.status_code == 200, paused.text
        frozen = stream.tokens
        async with trio.open_nursery() as nursery:
            queued: list[int] = []

            async def ask() -> None:
                answer = await service.ask(max_tokens=2)
                queued.append(answer.status_code)

            nursery.start_soon(ask)
            await trio.sleep(0.2)
            await service.reload()
            ready = await service.http.get("/ready")
            assert (ready.status_code, ready.json()["state"]) == (503, "paused")
            assert ready.json()["held"][0]["owner"] == "trainer"
            assert (await service.http.post("/resume?owner=other")).status_code == 409
            assert (stream.tokens, queued) == (frozen, [])
            resumed = await service.http.post("/resume?owner=trainer")
            assert resumed.status_code == 200, resumed.text
        await wait_finished(stream)
        await service.wait_gone(old or 0)

        assert (stream.tokens, queued) == (200, [200])
        await stop(service)
