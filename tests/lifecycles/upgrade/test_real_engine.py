"""An upgrade above a real engine, which must not notice more than a client that comes anew."""

from pathlib import Path

import pytest
import trio

from tests.lifecycles.rig import alive, descendants
from tests.lifecycles.upgrade.service import Answer, open_service, wait_finished
from tests.lifecycles.upgrade.test_processes import Hammer, stop
from tests.real_engine._process import ENGINE_ARGUMENTS, engine_environment, engine_python

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TOKENS = 500
BUDGET = 400.0
"""Seconds; an engine takes more than a minute to load where others use the machine."""


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
async def test_streams_of_a_real_engine_go_on(tmp_path: Path, version: str) -> None:
    arguments = ("--python", str(engine_python()), "--", *ENGINE_ARGUMENTS)
    environment = engine_environment(version)
    async with open_service(
        tmp_path, *arguments, external=False, environment=environment, budget=BUDGET
    ) as service:
        while (await service.http.get("/health")).status_code != 200:  # noqa: ASYNC110
            await trio.sleep(0.5)
        whole, old = Answer(), service.pid
        assert old is not None
        await service.stream(TOKENS, whole)
        engines = set(descendants(old))
        for _ in range(2):
            hammer = Hammer(service)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hammer.run)
                streams = await service.reload_amid(TOKENS, 4)
                assert not all(stream.finished for stream in streams)
                await wait_finished(*streams)
                hammer.stop()

            assert service.pid != old
            assert set(hammer.statuses) == {200}
            assert [stream.tokens for stream in streams] == [TOKENS] * 4
            assert {stream.text for stream in streams} == {whole.text}
            assert all(map(alive, engines))
            await service.wait_gone(old)
            old = service.pid
            assert old is not None
        await stop(service)
        assert not any(map(alive, engines))
