"""What operators see of a server that runs, and who may see it."""

import io
from contextlib import redirect_stdout

import pytest
import trio

from tests.lifecycles.rig import Frontend, config, serving, simulated_engine
from vllmfront.cli import _status as status
from vllmfront.lifecycles import ServerConfig


async def show(frontend: Frontend, *options: str) -> tuple[int, str]:
    """Run ``vllmfront status``; return its exit status and what it shows."""

    def run() -> tuple[int, str]:
        shown = io.StringIO()
        with redirect_stdout(shown):
            code = status.run(["--url", str(frontend.http.base_url), *options])
        return code, shown.getvalue()

    return await trio.to_thread.run_sync(run)


async def test_a_person_sees_the_tree_and_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    async with serving(config()) as frontend:
        loading = await show(frontend)
        async with simulated_engine(frontend):
            ready = await show(frontend)

    assert loading[0] == status.NOT_READY
    assert "LOADING for" in loading[1]
    assert ready[0] == status.READY
    assert "  the engine serves\n" in ready[1]
    assert "├─ api    READY" in ready[1]
    assert "  0  READY  0 in flight" in ready[1]


async def test_the_inside_needs_the_admin_key_and_no_log_has_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    server = ServerConfig(
        served_model_names=("tiny",), api_keys=("user-key",), admin_api_keys=("admin-key",)
    )
    caplog.set_level("DEBUG")
    async with serving(config(server=server)) as frontend:
        answers = {
            key: await frontend.http.get("/supervisor", headers={"authorization": f"Bearer {key}"})
            for key in ("user-key", "admin-key", "no-key")
        }
        probe = await frontend.http.get("/ready")
        locked = await show(frontend)
        wrong = await show(frontend, "--api-key", "user-key")
        opened = await show(frontend, "--api-key", "admin-key")

    assert {key: each.status_code for key, each in answers.items()} == {
        "user-key": 401,
        "admin-key": 200,
        "no-key": 401,
    }
    assert answers["admin-key"].json().keys() >= {"health", "tree", "engines"}
    assert probe.status_code == 503
    assert "more needs a key" in locked[1]
    assert "more needs another key" in wrong[1]
    assert "\nroot\n" in opened[1]
    assert "admin-key" not in caplog.text
    assert "user-key" not in caplog.text
