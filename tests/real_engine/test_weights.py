"""vLLM's own client of servers drives whole updates: of a stand-in, and of a real engine."""

import base64
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.lifecycles.rig import Frontend, config, serving, simulated_engine
from tests.real_engine._process import (
    TINY_CHAT,
    engine_command,
    engine_environment,
    engine_python,
)

PLUGIN = Path(__file__).parent / "weight_plugin"
SECONDS = 300.0
ASKED = {"temperature": 0, "ignore_eos": True, "return_weight_versions": True}
HEAD = "lm_head.weight"


def tensors(rotate: int = 0) -> dict[str, Any]:
    """Return the model's weights, with the rows of its head moved: it says neighbours of tokens."""
    content = (TINY_CHAT / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    found = {}
    for name, entry in json.loads(content[8:start]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16"
        first, last = entry["data_offsets"]
        data = content[start + first : start + last]
        if name == HEAD:
            cut = rotate * 2 * entry["shape"][1]
            data = data[cut:] + data[:cut]
        found[name] = {
            "dtype": "bfloat16",
            "shape": entry["shape"],
            "data": base64.b64encode(data).decode(),
        }
    return found


def pieces(rotate: int) -> list[dict[str, Any]]:
    """Return the weights as two updates."""
    weights = tensors(rotate)
    head = {HEAD: weights.pop(HEAD)}
    return [{"tensors": weights}, {"tensors": head}]


@attrs.define
class Trainer:
    """vLLM's client in a process of its own."""

    process: trio.Process
    _rest: bytes = b""

    async def wait_ready(self) -> None:
        """Return once it has imported vLLM, which takes its time."""
        assert await self.read() == "ready"

    async def do(self, name: str, *arguments: object) -> str | None:
        """Return what went wrong with one call, or None."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps([name, *arguments]).encode() + b"\n")
        answer: str | None = await self.read()
        return answer

    async def read(self) -> Any:
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            more = await self.process.stdout.receive_some()
            assert more, "the trainer has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def update(self, version: str, chunks: list[Any], *, start: str | None = None) -> None:
        """Run an update, with *start* in place of what the client has for it."""
        assert await self.do(start or "start_weight_update") is None
        for chunk in chunks:
            assert await self.do("update_weights", chunk) is None
        assert await self.do("finish_weight_update", version) is None


@asynccontextmanager
async def trainer(frontend: Frontend) -> AsyncGenerator[Trainer]:
    command = [str(engine_python()), str(Path(__file__).with_name("_trainer.py"))]
    url = str(frontend.http.base_url).rstrip("/")
    async with trio.open_nursery() as nursery:
        run = functools.partial(
            trio.run_process,
            [*command, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=engine_environment("0.32.0"),
            check=False,
        )
        process: trio.Process = await nursery.start(run)
        yield Trainer(process)
        nursery.cancel_scope.cancel(reason="the trainer has done its work")


async def text(frontend: Frontend, **fields: Any) -> dict[str, Any]:
    answer = await frontend.generate(**ASKED, **fields)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


@pytest.mark.engine
async def test_vllms_client_updates_a_stand_in_and_its_draft_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    async with (
        serving(config(), budget=SECONDS) as frontend,
        trainer(frontend) as one,
        simulated_engine(frontend, draft_model=True, step_time=0.01),
    ):
        await one.wait_ready()
        before = await text(frontend, max_tokens=8)
        assert await one.do("init_weight_transfer_engine", {"master_port": 1}) is None
        frozen: list[dict[str, Any]] = []

        async def generate() -> None:
            frozen.append(await text(frontend, max_tokens=300))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate)
            await trio.sleep(0.3)
            assert await one.do("/pause?mode=keep&owner=trainer") is None
            await one.update("v1", [{"names": ["a"]}, [{"names": ["b"]}]])
            await one.update("v1-draft", [{"names": ["d"]}], start="/start_draft_weight_update")
            assert await one.do("/resume?owner=trainer") is None
        versions = frozen[0]["weight_versions"]
        assert [span["version"] for span in versions] == ["default", "v1-draft"]
        assert (await text(frontend, max_tokens=8))["text"] != before["text"]
        problem = await one.do("update_weights", {"names": ["late"]})
        assert problem is not None
        assert "409" in problem
        assert await one.do("shutdown_weight_transfer_engine") is None


@pytest.mark.engine
@pytest.mark.parametrize("version", ["0.33.0", pytest.param("0.32.0", marks=pytest.mark.slow)])
async def test_vllms_client_updates_a_real_engine(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    async with (
        serving(config(), budget=SECONDS) as frontend,
        trainer(frontend) as one,
        _real_engine(frontend, version),
    ):
        await one.wait_ready()
        before = await text(frontend, max_tokens=12)
        assert await one.do("init_weight_transfer_engine", {}) is None
        assert await one.do("/pause?mode=keep") is None
        await one.update("moved", pieces(1))
        assert await one.do("/resume") is None
        moved = await text(frontend, max_tokens=12)
        assert moved["text"] != before["text"]
        assert moved["weight_versions"] == [{"version": "moved", "start": 0, "end": 12}]

        # An update that is given up before weights came leaves those that were there.
        assert await one.do("/pause?mode=keep") is None
        assert await one.do("start_weight_update") is None
        assert "409" in str(await one.do("/resume"))
        assert await one.do("shutdown_weight_transfer_engine") is None
        assert await one.do("/resume") is None
        assert (await text(frontend, max_tokens=12))["text"] == moved["text"]

        # One that fails is recovered from without a restart, and the border is inside an answer.
        assert await one.do("init_weight_transfer_engine", {}) is None
        frozen: list[dict[str, Any]] = []

        async def generate() -> None:
            frozen.append(await text(frontend, max_tokens=700))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate)
            await trio.sleep(0.4)
            assert await one.do("/pause?mode=keep&clear_cache=false") is None
            assert await one.do("start_weight_update") is None
            assert "500" in str(await one.do("update_weights", {"tensors": 3}))
            assert await one.do("shutdown_weight_transfer_engine") is None
            assert "409" in str(await one.do("/resume"))
            assert await one.do("init_weight_transfer_engine", {}) is None
            await one.update("first again", pieces(0))
            assert await one.do("/resume") is None
        assert [span["version"] for span in frozen[0]["weight_versions"]] == [
            "moved",
            "first again",
        ]
        assert (await text(frontend, max_tokens=12))["text"] == before["text"]


@asynccontextmanager
async def _real_engine(frontend: Frontend, version: str) -> AsyncGenerator[None]:
    """Run a real engine with the backend of ``weight_plugin`` for *frontend*."""
    assert frontend.serving is not None
    assert frontend.serving.handshake_address is not None
    port = int(frontend.serving.handshake_address.rpartition(":")[2])
    environment = dict(engine_environment(version))
    paths = [str(PLUGIN), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [*engine_command(port), "--weight-transfer-config", '{"backend": "inline"}']
    async with trio.open_nursery() as nursery:
        run = functools.partial(
            trio.run_process, command, env=environment, stdout=sys.stderr, start_new_session=True
        )
        process: trio.Process = await nursery.start(functools.partial(run, check=False))
        try:
            await frontend.wait_ready()
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
